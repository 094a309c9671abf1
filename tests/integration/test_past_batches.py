"""What `longrow show RUN --batch` prints is what the run's workers really read in that step."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer.anchors
import trainer.loop
from jobs.past_rows import anchor_of, anchors_around, check_reach
from jobs.show_batch import show_batch
from jobs.show_rows import walked
from pipeline.batch import Batch, digest
from pipeline.build import build_store
from pipeline.client import RowClient
from pipeline.commit import TaskRecord
from pipeline.errors import DataError
from pipeline.growing import GrowingStore
from pipeline.layout import Layout
from pipeline.publish import Publisher
from pipeline.rows_state import RowsState
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer
from tests.command import code_of
from tests.tiny_runs import tiny_plan
from trainer.board import Board, LocalReporter, Verdict
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.run_folder import RunFolder

TASKS = 20
Read = dict[int, tuple[str, Batch]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """What the loop takes from its client, by the steps done with it; anchors stand close."""
    taken: Read = {}

    class Watched(RowClient):
        def next(self) -> tuple[Batch, RowsState]:
            batch, state = super().next()
            taken[batch.step + 1] = (digest(batch), batch)
            return batch, state

    monkeypatch.setattr(trainer.loop, "RowClient", Watched)
    monkeypatch.setattr(trainer.anchors, "EVERY", 3)
    return taken


def train_here(plan: TrainPlan) -> tuple[Verdict, list[str]]:
    board = Board()
    group = Group(device=torch.device("cpu"))
    verdict = train(plan, group, LocalReporter(board), lambda _rows: None)
    return verdict, board.drain().notes


def until(plan: TrainPlan, steps: int) -> TrainPlan:
    return replace(plan, trainer=replace(plan.trainer, steps=steps))


def assert_shown_as_read(folder: Path, read: Read, steps: int) -> None:
    for step in range(1, steps + 1):
        facts = show_batch(RunFolder(folder), step)
        assert facts["sha256"] == read[step][0], step


def assert_texts_are_those_read(facts: dict[str, Any], batch: Batch, store: Store) -> None:
    tokenizer = store.tokenizer()
    for row, told in enumerate(facts["rows"]):
        assert sum(piece["inputs"] for piece in told["pieces"]) == batch.tokens.shape[1]
        for piece in told["pieces"]:
            column, end = piece["column"], piece["column"] + piece["inputs"]
            ids = batch.tokens[row, column:end]
            assert piece["text"] == tokenizer.decode(ids)
            assert piece["reset"] == (batch.offset[row, column] == 0)
            whole, at = store.text(piece["document"]), piece["offset"]
            assert whole[max(0, at - 1) :].startswith(piece["text"])  # a byte is a token here
            assert piece["ends"] == (at + piece["inputs"] == piece["tokens"] + 1)
            assert piece["id"] == store.uid(piece["document"])


def test_every_past_batch_is_found_again_after_resumes_and_other_rows(
    tiny_store: Path, tmp_path: Path, read: Read
) -> None:
    plan = tiny_plan(tiny_store, tmp_path / "run", steps=7)
    assert train_here(plan)[0].status == "done"
    assert train_here(until(plan, 9))[0].status == "done"
    moved = replace(until(plan, 14), layout=Layout(rows=6, segment=10, seed=3))
    refused, _ = train_here(moved)
    assert (refused.status, refused.kind) == ("failed", "config")
    assert "longrow resume --reshard" in refused.reason
    verdict, notes = train_here(replace(moved, reshard=True))
    assert verdict.status == "done"
    assert any("4 documents in progress are read again from their start" in n for n in notes)
    assert train_here(until(moved, 17))[0].status == "done"  # the new rows are the run's now
    assert read[17][1].tokens.shape == (6, 10)
    assert_shown_as_read(tmp_path / "run", read, 17)
    store = Store.open(str(tiny_store))
    for step in (3, 9, 10, 16):
        facts = show_batch(RunFolder(tmp_path / "run"), step)
        assert_texts_are_those_read(facts, read[step][1], store)


def test_a_batch_is_found_without_any_checkpoint(
    tiny_store: Path, tmp_path: Path, read: Read
) -> None:
    plan = tiny_plan(tiny_store, tmp_path / "run", steps=8)
    plan = replace(plan, checkpoint=replace(plan.checkpoint, every=100))
    train_here(plan)
    names = sorted(path.name for path in (tmp_path / "run" / "anchors").iterdir())
    assert names == [f"step_{step:08d}.json" for step in (0, 3, 6)]
    assert_shown_as_read(tmp_path / "run", read, 8)
    (tmp_path / "run" / "anchors" / names[1]).write_text('{"version": 1')  # damaged: an older one
    assert_shown_as_read(tmp_path / "run", read, 8)


def test_anchors_past_a_resume_are_cut(tiny_store: Path, tmp_path: Path, read: Read) -> None:
    plan = tiny_plan(tiny_store, tmp_path / "run", steps=7)
    train_here(plan)
    anchors = tmp_path / "run" / "anchors"
    future = anchors / "step_00000099.json"  # of an attempt that was killed and fell back
    future.write_bytes((anchors / "step_00000006.json").read_bytes())
    train_here(until(plan, 8))
    assert not future.exists()
    assert_shown_as_read(tmp_path / "run", read, 8)


def test_padded_rows_of_a_mixture_are_shown_as_read(
    tiny_store: Path, tmp_path: Path, read: Read
) -> None:
    name = f'mixture:[["{tiny_store}", "2"]]'
    plan = tiny_plan(tiny_store, tmp_path / "run", steps=5)
    plan = replace(
        plan,
        store=name,
        store_fingerprint=Store.open(name).fingerprint,
        layout=replace(plan.layout, boundary="pad", shuffle="block", block=4),
    )
    assert train_here(plan)[0].status == "done"
    assert_shown_as_read(tmp_path / "run", read, 5)
    pieces = [
        p for row in show_batch(RunFolder(tmp_path / "run"), 5)["rows"] for p in row["pieces"]
    ]
    assert any(piece["document"] is None for piece in pieces)


def test_the_command_prints_texts_and_rows_and_refuses_what_cannot_be(
    tiny_store: Path, tmp_path: Path, read: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tiny_plan(tiny_store, tmp_path / "run", steps=4)
    train_here(plan)
    run = str(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{}")
    assert code_of("show", run, "--batch", "2", "--json") == 0
    out = capsys.readouterr().out
    facts = json.loads(out.splitlines()[-1])
    assert facts["sha256"] == read[2][0]
    for row in facts["rows"]:
        for piece in row["pieces"]:
            assert json.dumps(piece["text"])[1:-1] in out
    assert code_of("show", run, "--step", "3", "--json") == 0
    drawn = json.loads(capsys.readouterr().out.splitlines()[-1])
    told = [(one["row"], one["document"], one["offset"]) for one in drawn["reads"]]
    batch = read[3][1]
    wanted = [
        (row, int(batch.doc_id[row, column]), int(batch.offset[row, column]))
        for row in range(4)
        for column in range(16)
        if column == 0 or batch.offset[row, column] == 0
    ]
    assert told == wanted
    for words in (("--batch", "5"), ("--batch", "1", "--rows", "3"), ("--rows", "3")):
        assert code_of("show", run, *words) == 2
    assert code_of("show", str(tiny_store), "--batch", "1") == 2


def test_new_rows_are_the_runs_from_their_first_step_on(
    tiny_store: Path, tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiny_plan(tiny_store, tmp_path / "run", steps=3)
    train_here(plan)
    moved = replace(until(plan, 6), layout=Layout(rows=2, segment=10, seed=3))

    def dies(*_args: Any, **_settings: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(trainer.loop, "take_step", dies)
        with pytest.raises(RuntimeError, match="killed"):
            train_here(replace(moved, reshard=True))
    verdict, notes = train_here(moved)  # as Ray Train starts it again: nothing is dealt anew
    assert (verdict.status, verdict.step) == ("done", 6)
    assert not any("dealt anew" in note for note in notes)
    assert_shown_as_read(tmp_path / "run", read, 6)


def test_rows_around_a_step_are_drawn_as_read_across_a_reshard_and_the_rest_is_to_come(
    tiny_store: Path, tmp_path: Path, read: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tiny_plan(tiny_store, tmp_path / "run", steps=3)
    train_here(plan)
    moved = replace(until(plan, 6), layout=Layout(rows=2, segment=10, seed=3))
    assert train_here(replace(moved, reshard=True))[0].status == "done"
    (tmp_path / "run" / "config.json").write_text("{}")
    lengths = Store.open(str(tiny_store)).by_length("train")
    for step, around in ((3, 5), (5, 4), (1, 1)):
        first, last = max(0, step - 1 - around), step - 1 + around
        _, anchors = anchors_around(RunFolder(tmp_path / "run"), first, last)
        stretches = walked(lengths, anchors, step=step, around=around)
        drawn = {reading.step + 1: reading for one in stretches for reading in one.readings}
        assert list(drawn) == list(range(first + 1, last + 2))
        for number in sorted(set(drawn) & set(read)):
            batch = read[number][1]
            told = {(int(p["row"]), int(p["column"])): p for p in drawn[number].pieces}
            for (row, column), piece in told.items():
                assert piece["doc_id"] == batch.doc_id[row, column]
                assert piece["offset"] == batch.offset[row, column]
            assert sum(int(p["count"]) for p in told.values()) == batch.tokens.size
    capsys.readouterr()
    assert code_of("show", str(tmp_path / "run"), "--step", "3", "--around", "5", "--json") == 0
    out = capsys.readouterr().out
    facts = json.loads(out.splitlines()[-1])
    assert [tuple(one.values()) for one in facts["drawn"]] == [(1, 3, 4, 16), (4, 8, 2, 10)]
    assert "from step 4 on the rows are dealt anew: 2 rows of 10 tokens" in out
    assert out.count("to come") == 2  # 7 and 8
    assert code_of("show", str(tmp_path / "run"), "--step", "8") == 0
    assert "step 8 is to come: the run has done 6" in capsys.readouterr().out


@pytest.mark.usefixtures("read")  # for its anchors
def test_a_damaged_anchor_that_is_passed_over_is_named(
    tiny_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tiny_plan(tiny_store, tmp_path / "run", steps=4)
    train_here(replace(plan, checkpoint=replace(plan.checkpoint, every=100)))
    (tmp_path / "run" / "config.json").write_text("{}")
    damaged = tmp_path / "run" / "anchors" / "step_00000003.json"
    damaged.write_text('{"version": 1')
    for words in (("--batch", "4"), ("--step", "4", "--around", "0")):
        capsys.readouterr()
        assert code_of("show", str(tmp_path / "run"), *words) == 0
        told = capsys.readouterr().err.splitlines()
        assert [f"{damaged} is damaged and passed over" in line for line in told] == [True]


def test_the_texts_of_a_step_are_shown_while_the_store_is_still_being_built(
    tmp_path: Path, read: Read
) -> None:
    lines = [json.dumps({"text": f"{i} memory " * (i * 7 % 23 + 1)}) for i in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "byte").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))
    store = tmp_path / "store"

    class Keeping(Publisher):
        def committed(self, task: int, record: TaskRecord) -> None:
            super().committed(task, record)
            if task == TASKS:  # all that the run has read, and some more
                shutil.copytree(store / "building", tmp_path / "said")

    build_store(
        [str(tmp_path / "a.jsonl")],
        tokenizer=str(tmp_path / "byte"),
        out=str(store),
        settings=BuildSettings(task_bytes=200, held_out=0.1),
        publisher=Keeping(str(store)),
    )
    head = json.loads((tmp_path / "said/plan.json").read_text())["plan"]
    plan = tiny_plan(store, tmp_path / "run", steps=9)
    plan = replace(plan, store_fingerprint="", building=head)
    plan = replace(plan, layout=replace(plan.layout, shuffle="none"))
    assert train_here(plan)[0].status == "done"
    (store / "manifest.json").unlink()
    shutil.copytree(tmp_path / "said", store / "building")
    assert_shown_as_read(tmp_path / "run", read, 9)
    known, anchor = anchor_of(RunFolder(tmp_path / "run"), 8)
    assert isinstance(known, GrowingStore)
    check_reach(known, anchor, 9)
    with pytest.raises(DataError, match=r"still being built: its first .* do not reach step 500"):
        check_reach(known, anchor, 500)
