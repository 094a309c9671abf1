"""A node that Ray drains: the run stops with a checkpoint, before the node goes away."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ray_here import ray_session
from tests.tiny_runs import tiny_plan


@pytest.fixture
def a_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from trainer.launch_ray import ENVIRONMENT

    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    yield from ray_session()


@pytest.mark.usefixtures("a_ray")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Train, in its use of Ray Data
@pytest.mark.timeout(180)
def test_a_node_that_drains_stops_the_run_after_a_checkpoint_of_its_step(
    tiny_store: Path, tmp_path: Path
) -> None:
    import ray
    from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]

    from trainer.board import News
    from trainer.checkpoint import checkpoints, step_of
    from trainer.launch_ray import launch_ray
    from trainer.run_folder import RunFolder
    from trainer.settings import ClusterSettings

    plan = replace(
        tiny_plan(tiny_store, tmp_path / "run", steps=1_000_000),
        cluster=ClusterSettings(launcher="ray", workers=2, serving="local", retries=0),
    )
    steps: list[int] = []
    drained: list[bool] = []

    def on_news(news: News) -> None:
        steps.extend(line["step"] for line in news.lines if line["kind"] == "step")
        if steps and not drained:
            context = ray.get_runtime_context()
            reason = 2  # DRAIN_NODE_REASON_PREEMPTION
            until = time.time_ns() // 1_000_000 + 600_000
            accepted, why = GcsClient(address=context.gcs_address).drain_node(
                context.get_node_id(), reason, "taken back", until
            )
            assert accepted, why
            drained.append(True)

    verdict = launch_ray(plan, on_news=on_news, stop_reason=lambda: "")
    expected = ("stopped", "the node of rank 0, 1 drains")
    assert (verdict.status, verdict.reason) == expected, verdict
    newest = checkpoints(RunFolder(plan.folder).checkpoints)[-1]
    assert step_of(newest) == verdict.step == steps[-1]
