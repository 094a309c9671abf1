"""What a person sees of a run in MLflow's own pages, in a real browser."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from playwright.sync_api import Page, expect

from tests.services.browser import browser_page, keep
from tests.services.runs import STEPS, check_the_record, train_with_a_restart
from tests.services.servers import mlflow_server

TO_THE_TOP = "one => one.scrollIntoView({block: 'start'})"
ASSISTANT = '[data-component-id="mlflow.assistant.chat_panel.close"]'


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A browser at a server that holds two runs, of which `run` was restarted."""

    page: Page
    uri: str
    run_id: str
    outside: list[str]

    def go(self, path: str) -> Page:
        self.page.goto("about:blank")  # what follows # alone loads nothing anew
        self.page.goto(f"{self.uri}/#/{path}")
        return self.page

    def go_to_run(self, tab: str = "") -> Page:
        return self.go(f"experiments/{self.experiment}/runs/{self.run_id}{tab}")

    @property
    def experiment(self) -> str:
        return MlflowClient(self.uri).get_run(self.run_id).info.experiment_id


@pytest.fixture(scope="module")
def seen(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("pages")
    database, artifacts = f"sqlite:///{folder / 'mlflow.db'}", str(folder / "artifacts")
    with mlflow_server(folder, database=database, artifacts=artifacts) as uri:
        run_id = train_with_a_restart(folder, tiny_store, {"MLFLOW_TRACKING_URI": uri})
        with browser_page(folder / "profile") as (page, outside):
            page.goto(uri)
            page.get_by_text("Model training", exact=True).first.click()
            page.locator(ASSISTANT).click()
            yield Seen(page=page, uri=uri, run_id=run_id, outside=outside)


def test_the_record_is_whole(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", seen.uri)
    check_the_record(seen.uri, seen.run_id)


def test_the_experiment_is_listed_and_leads_to_its_runs(seen: Seen) -> None:
    page = seen.go("experiments")
    page.get_by_role("link", name="longrow", exact=True).click()
    expect(page.get_by_role("link", name="run", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="other", exact=True)).to_be_visible()
    expect(page.get_by_text("matching runs")).to_contain_text("2")
    keep(page, "1-runs")


def test_the_run_page_says_what_it_is_and_how_to_go_on(seen: Seen) -> None:
    page = seen.go_to_run()
    for said in ("2 layers of width 16, 2 heads of 8, memory 20", "longrow resume", "Checkpoints:"):
        expect(page.get_by_text(said).first).to_be_attached()
    for tag in ("longrow.corpus", "longrow.weights", "longrow.ended"):
        expect(page.get_by_text(tag).first).to_be_visible()
    expect(page.get_by_text("Finished").first).to_be_visible()
    expect(page.get_by_text("store (", exact=False).first).to_be_visible()  # the dataset
    page.get_by_text("Show more", exact=True).first.click()
    expect(page.get_by_text("Checkpoints:").first).to_be_in_viewport()
    keep(page, "2-run")


def test_the_run_page_shows_parameters_metrics_and_checkpoints(seen: Seen) -> None:
    page = seen.go_to_run()
    for name in ("rows.segment", "optimizer.learning_rate", "train/loss", "eval/bits_per_byte"):
        expect(page.get_by_text(name, exact=True).first).to_be_attached()
    page.get_by_text("Parameters (", exact=False).first.evaluate(TO_THE_TOP)
    keep(page, "2-parameters")
    page.get_by_text("store (", exact=False).first.click()
    expect(page.get_by_text("Data details for")).to_be_visible()
    for said in ("documents:", "tokens:", "Path:"):
        expect(page.get_by_text(said).first).to_be_visible()
    keep(page, "2-dataset")
    page = seen.go_to_run()
    expect(page.get_by_text(f"step_{STEPS:08d}-a0002").first).to_be_attached()
    expect(page.get_by_text("step_00000006-a0001").first).to_be_attached()
    page = seen.go(f"experiments/{seen.experiment}/models")
    expect(page.get_by_text(f"step_{STEPS:08d}-a0002").first).to_be_visible()
    keep(page, "3-checkpoints")


def test_the_curves_are_grouped_and_drawn(seen: Seen) -> None:
    page = seen.go_to_run("/model-metrics")
    drawn = page.locator(".js-plotly-plot path.js-line")
    for group, of in (("data", "document_starts"), ("eval", "bits_per_byte"), ("train", "loss")):
        # What is out of sight is not drawn.
        page.get_by_text(group, exact=True).first.evaluate(TO_THE_TOP)
        expect(page.get_by_role("heading", name=of, exact=True).last).to_be_attached()
        expect(drawn.last).to_be_attached()
        keep(page, f"4-{group}")
        expect(page.get_by_text(group, exact=True).first).to_be_in_viewport()
    page.wait_for_function(
        "[...document.querySelectorAll('.js-plotly-plot path.js-line')]"
        ".some(line => line.getAttribute('d').split(/[LC]/).length >= 20)"
    )  # a curve through its points, not a dot


@pytest.mark.parametrize("name", ["loss.png", "loss_by_offset.png", "memory_step"])
def test_pictures_are_shown(seen: Seen, name: str) -> None:
    page = seen.go_to_run("/artifacts")
    page.get_by_text("pictures", exact=True).first.click()
    page.get_by_text(name).first.click()
    picture = page.locator('img[src^="blob:"]').first
    expect(picture).to_be_visible()
    page.wait_for_function("[...document.images].some(one => one.naturalWidth > 600)")
    keep(page, f"5-{name.removesuffix('.png')}")


def test_samples_of_text_are_a_table(seen: Seen) -> None:
    page = seen.go_to_run("/artifacts")
    page.get_by_text("samples", exact=True).first.click()
    page.get_by_text(f"step_{STEPS:08d}.json").first.click()
    for column in ("document", "prompt", "text"):
        expect(page.get_by_text(column, exact=True).first).to_be_visible()
    keep(page, "6-samples")


def test_two_runs_compared_differ_in_their_settings_alone(seen: Seen) -> None:
    client = MlflowClient(seen.uri)
    other = client.search_runs([seen.experiment], "tags.`longrow.run` = 'other'")[0].info.run_id
    page = seen.go(
        f'compare-runs?runs=["{seen.run_id}","{other}"]&experiments=["{seen.experiment}"]'
    )
    page.get_by_text("Show diff only").first.wait_for()
    page.get_by_role("switch").first.click()
    expect(page.get_by_text("optimizer.learning_rate").last).to_be_attached()
    page.get_by_text("rows.segment", exact=True).wait_for(state="detached")
    for same in ("run.name", "run.folder", "data.store"):
        assert page.get_by_text(same, exact=True).count() == 0
    keep(page, "7-compare")


def test_the_pages_ask_for_nothing_beyond_this_machine(seen: Seen) -> None:
    assert seen.outside == []
