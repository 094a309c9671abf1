"""A run is the same run whatever happens to it: stopped, killed, moved, cut up in pieces."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from tests.ranks import ranks_here
from tests.tiny_runs import TOML, tiny_plan
from trainer import spikes
from trainer import step as step_module
from trainer.board import Board, LocalReporter, Verdict
from trainer.checkpoint import checkpoints, read_state
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.run_folder import RunFolder
from trainer.settings import CheckpointSettings, EvaluateSettings

ROOT = Path(__file__).parents[2]
STEPS = 12  # of a run in this process
LONG = 150  # of a run in processes of its own: enough to be stopped on a fast machine
REST = """
[trainer]
steps = {steps}
threads = 1
[optimizer]
learning_rate = 1e-2
warmup_steps = 3
[checkpoint]
every = 5
[tracking]
uri = "off"
[cluster]
launcher = "local"
"""


@pytest.fixture
def plan(tiny_store: Path, tmp_path: Path) -> TrainPlan:
    return tiny_plan(tiny_store, tmp_path / "run", steps=STEPS)


class StopAfter(LocalReporter):
    """Asks to stop once `step` is done, as a signal would."""

    def __init__(self, step: int | None) -> None:
        self.board = Board()
        super().__init__(self.board)
        self._step = step
        if step == 0:
            self.board.ask_stop("a test wants it")

    def line(self, values: dict[str, Any]) -> None:
        super().line(values)
        # A step is told one step late, so this is the stop that a person presses in the middle.
        if self._step is not None and values["step"] >= self._step:
            self.board.ask_stop("a test wants it")


def train_here(
    plan: TrainPlan,
    *,
    stop_after: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Verdict:
    RunFolder(plan.folder).create()
    group = Group(device=torch.device("cpu"))
    return train(plan, group, StopAfter(stop_after), lambda _rows: None, clock=clock)


def losses(folder: str | Path) -> list[tuple[int, float]]:
    lines = RunFolder(folder).lines()
    return [(line["step"], line["train/loss"]) for line in lines if line["kind"] == "step"]


def numbers(folder: str | Path) -> list[dict[str, Any]]:
    """Every line, without what depends on the clock or the attempt."""
    dropped = {
        "attempt",
        "time",
        "train/tokens_per_second",
        "train/step_seconds",
        "data/wait_seconds",
    } | {*("train/model_flops_per_second", "system/host_memory_bytes")}
    return [
        {key: value for key, value in line.items() if key not in dropped}
        for line in RunFolder(folder).lines()
    ]


def test_a_run_stopped_anywhere_and_resumed_is_the_run_that_was_never_stopped(
    plan: TrainPlan, tmp_path: Path
) -> None:
    assert train_here(plan).status == "done"
    whole = numbers(plan.folder)
    assert [line["step"] for line in whole if line["kind"] == "step"] == list(range(1, STEPS + 1))
    for stop in (0, 1, 4, 5, 10, STEPS - 1):
        cut = replace(plan, folder=str(tmp_path / f"cut-{stop}"))
        first = train_here(cut, stop_after=stop)
        assert first.status == "stopped"
        assert stop <= first.step <= STEPS  # the last one is stopped in its final evaluation
        second = train_here(cut)
        assert second.status == "done"
        assert numbers(cut.folder) == whole, f"stopped after step {first.step}"


def test_a_resume_of_a_resume_of_a_resume_is_still_the_same_run(
    plan: TrainPlan, tmp_path: Path
) -> None:
    train_here(plan)
    cut = replace(plan, folder=str(tmp_path / "cut"))
    for stop in (2, 4, 6, 8):
        assert train_here(cut, stop_after=stop).status == "stopped"
    assert train_here(cut).status == "done"
    assert numbers(cut.folder) == numbers(plan.folder)
    assert len(RunFolder(cut.folder).attempts()) == 5


def test_pieces_of_rows_give_the_losses_of_the_whole_batch(plan: TrainPlan, tmp_path: Path) -> None:
    train_here(plan)
    for pieces in (2, 4):
        other = replace(
            plan,
            folder=str(tmp_path / f"pieces-{pieces}"),
            trainer=replace(plan.trainer, accumulation=pieces),
        )
        train_here(other)
        assert losses(other.folder) == [
            (step, pytest.approx(loss, rel=1e-5)) for step, loss in losses(plan.folder)
        ]


def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_it_is_taken(
    plan: TrainPlan, tmp_path: Path
) -> None:
    train_here(plan)
    cut = replace(plan, folder=str(tmp_path / "cut"))
    train_here(cut, stop_after=10)
    newest = max(RunFolder(cut.folder).checkpoints.iterdir())
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    reporter = StopAfter(None)
    train(cut, Group(device=torch.device("cpu")), reporter, lambda _rows: None)
    assert any("model.safetensors" in note for note in reporter.board.drain().notes)
    assert newest.exists()
    assert numbers(cut.folder) == numbers(plan.folder)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda plan: replace(plan, seed=4), "run.seed is 3 there and 4 here"),
        (
            lambda plan: replace(plan, layout=replace(plan.layout, segment=8)),
            "rows.segment is 16 there and 8 here",
        ),
        (
            lambda plan: replace(plan, model=replace(plan.model, heads=1)),
            "model.heads is 2 there and 1 here",
        ),
    ],
)
def test_another_run_in_the_same_folder_is_refused_with_both_values(
    plan: TrainPlan, change: Callable[[TrainPlan], TrainPlan], key: str
) -> None:
    train_here(plan, stop_after=2)
    verdict = train_here(change(plan))
    assert (verdict.status, verdict.kind) == ("failed", "config")
    assert key in verdict.reason


def test_a_longer_memory_may_be_taken_at_a_resume(plan: TrainPlan) -> None:
    train_here(plan, stop_after=3)
    longer = replace(plan, model=replace(plan.model, memory=40))
    assert train_here(longer).status == "done"


def test_a_changed_next_batch_is_caught_before_the_first_step(plan: TrainPlan) -> None:
    train_here(plan, stop_after=3)
    newest = max(RunFolder(plan.folder).checkpoints.iterdir())
    state = json.loads((newest / "state.json").read_text())
    state["rows"]["rows"]["began"][1] -= 1  # row 1 would read one token further on
    _rewrite(newest, "state.json", json.dumps(state).encode())
    verdict = train_here(plan)
    assert (verdict.status, verdict.kind) == ("failed", "data")


def test_an_evaluation_whose_line_was_lost_is_told_again(plan: TrainPlan) -> None:
    train_here(plan)
    whole = numbers(plan.folder)
    folder = RunFolder(plan.folder)
    lines = folder.metrics.read_text().splitlines(keepends=True)
    assert "evaluation" in lines[-1]
    folder.metrics.write_text("".join(lines[:-1]))  # died between the scores and their line
    assert train_here(plan).status == "done"
    assert numbers(plan.folder) == whole


def test_an_attempt_that_another_process_overtakes_stops_and_writes_no_more(
    plan: TrainPlan,
) -> None:
    folder = RunFolder(plan.folder)

    class Overtaken(StopAfter):
        def line(self, values: dict[str, Any]) -> None:
            super().line(values)
            if values["step"] == 3:
                folder.begin(replace(folder.attempts()[-1], number=2))

    folder.create()
    group = Group(device=torch.device("cpu"))
    verdict = train(plan, group, Overtaken(None), lambda _rows: None)
    assert (verdict.status, verdict.kind) == ("failed", "overtaken")
    assert "overtaken by a later one" in verdict.reason
    written = [
        json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in written if line["kind"] == "step"] == [1, 2, 3]
    assert losses(plan.folder) == []  # the later attempt begins before them
    assert list(folder.checkpoints.iterdir()) == []


def _rewrite(checkpoint: Path, name: str, data: bytes) -> None:
    """Change a file and the manifest with it, as no crash but only a person could."""
    import hashlib

    (checkpoint / name).write_bytes(data)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


class Ranks:
    """`longrow train` as several processes, in the environment that torchrun gives them."""

    def __init__(self, folder: Path, store: Path, *, dropout: float = 0.1) -> None:
        folder.mkdir(parents=True)
        self.folder = folder / "runs" / "run"
        self._config = folder / "run.toml"
        text = (TOML + REST).format(folder=folder / "runs", store=store, steps=LONG)
        self._config.write_text(text.replace("dropout = 0.1", f"dropout = {dropout}"))

    def train(self, world_size: int) -> None:
        """Train to the end."""
        self._end(self._start(world_size), code=0)

    def train_until(self, world_size: int, step: int, *, signal_number: int) -> None:
        """Train past `step`, then send the signal: SIGINT to rank 0, SIGKILL to all."""
        reached = max((done for done, _ in losses(self.folder)), default=0)
        goal = max(step, reached + 5)  # told by these processes, not by those before them
        processes = self._start(world_size)
        deadline = time.monotonic() + 90
        while not any(done >= goal for done, _ in losses(self.folder)):
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in processes)
            time.sleep(0.02)
        killed = signal_number == signal.SIGKILL
        for process in processes if killed else processes[:1]:
            process.send_signal(signal_number)
        self._end(processes, code=-signal.SIGKILL if killed else 130)
        assert goal <= losses(self.folder)[-1][0] < LONG

    def _end(self, processes: list[subprocess.Popen[bytes]], *, code: int) -> None:
        ends = [process.communicate(timeout=120)[1].decode() for process in processes]
        assert [process.returncode for process in processes] == [code] * len(ends), ends

    def _start(self, world_size: int) -> list[subprocess.Popen[bytes]]:
        return [
            subprocess.Popen(
                [sys.executable, "-m", "jobs.train", str(self._config)],
                cwd=ROOT,
                env=os.environ | rank,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in ranks_here(world_size)
        ]


@pytest.fixture(scope="module")
def undisturbed(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folder of a whole run by 1 and by 2 workers."""
    folders: dict[int, Path] = {}
    for world_size in (1, 2):
        ranks = Ranks(tmp_path_factory.mktemp("whole") / str(world_size), tiny_store)
        ranks.train(world_size)
        folders[world_size] = ranks.folder
    return folders


def test_two_workers_have_the_losses_of_one_dropout_and_all(undisturbed: dict[int, Path]) -> None:
    one, two = (losses(undisturbed[world_size]) for world_size in (1, 2))
    assert len(one) == LONG
    assert two == [(step, pytest.approx(loss, rel=1e-5)) for step, loss in one]
    assert two != one  # else the second run was no run of two


def test_two_workers_killed_and_started_again_repeat_every_bit(
    undisturbed: dict[int, Path], tiny_store: Path, tmp_path: Path
) -> None:
    ranks = Ranks(tmp_path / "killed", tiny_store)
    ranks.train_until(2, 12, signal_number=signal.SIGKILL)
    ranks.train(2)
    assert losses(ranks.folder) == losses(undisturbed[2])
    last = RunFolder(ranks.folder).attempts()[-1]
    assert last.start_step >= 5  # it went on, and did not begin again


def test_a_run_moves_from_two_workers_to_one_and_back(
    undisturbed: dict[int, Path], tiny_store: Path, tmp_path: Path
) -> None:
    ranks = Ranks(tmp_path / "moved", tiny_store)
    ranks.train_until(2, 8, signal_number=signal.SIGINT)
    ranks.train_until(1, 20, signal_number=signal.SIGINT)
    ranks.train(2)
    attempts = RunFolder(ranks.folder).attempts()
    assert [attempt.world_size for attempt in attempts] == [2, 1, 2]
    assert 8 <= attempts[1].start_step < attempts[2].start_step < LONG
    assert losses(ranks.folder) == [
        (step, pytest.approx(loss, rel=1e-5)) for step, loss in losses(undisturbed[2])
    ]


def test_average_spikes_best_and_patience_are_the_same_after_a_resume(
    plan: TrainPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything a decision reads is saved: the guard knows the usual norm after three of them."""
    monkeypatch.setattr(spikes, "FEWEST", 3)
    real = spikes.judge

    def shaken(norm: torch.Tensor, seen: torch.Tensor, *, factor: float) -> Any:
        spike = (seen[1] % 6 == 5) & (seen[1] > 0)  # every sixth norm: 3 times the usual
        return real(torch.where(spike, 3 * seen[0].float(), norm), seen, factor=factor)

    monkeypatch.setattr(step_module, "judge", shaken)
    rich = replace(
        plan,
        trainer=replace(plan.trainer, steps=40, average=0.9, spike_factor=2.0),
        optimizer=replace(plan.optimizer, schedule="inverse_sqrt", learning_rate=3e-3),
        evaluate=EvaluateSettings(every=4, patience=8),
        checkpoint=CheckpointSettings(every=5, keep_best=1),
    )
    assert train_here(rich).status == "done"
    whole = numbers(rich.folder)
    skipped = [line["train/skipped_steps"] for line in whole if line["kind"] == "step"]
    assert skipped[-1] > 0
    cut = replace(rich, folder=str(tmp_path / "cut"))
    for stop in (3, 8, 21, 22, 30):
        train_here(cut, stop_after=stop)
    assert train_here(cut).status == "done"
    assert numbers(cut.folder) == whole
    assert counters_at_the_end(cut) == counters_at_the_end(rich)
    assert {path.name[:13] for path in RunFolder(cut.folder).checkpoints.iterdir()} == {
        path.name[:13] for path in RunFolder(rich.folder).checkpoints.iterdir()
    }


def counters_at_the_end(plan: TrainPlan) -> dict[str, Any]:
    newest = checkpoints(RunFolder(plan.folder).checkpoints)[-1]
    return read_state(newest)["counters"]


def test_where_the_clock_put_an_evaluation_a_resume_evaluates_again(
    plan: TrainPlan, tmp_path: Path
) -> None:
    """The clock decides once: what a killed attempt was scored at, the next one is scored at."""
    timed = replace(plan, evaluate=EvaluateSettings(minutes=1.0))
    seconds = count(0, 19)  # a look at the clock takes 19 s
    assert train_here(timed, clock=lambda: next(seconds)).status == "done"
    whole = numbers(timed.folder)
    scored = [line["step"] for line in whole if line["kind"] == "evaluation"]
    assert len(scored) > 2
    assert losses(timed.folder) == losses(other_run(plan, tmp_path))  # nothing else has changed
    folder = RunFolder(timed.folder)
    newest = checkpoints(folder.checkpoints)
    for path in newest[1:]:
        shutil.rmtree(path)  # back to step 5, as a kill would leave it
    hours = count(0, 10_000)  # a clock that would score after each step
    assert train_here(timed, clock=lambda: next(hours)).status == "done"
    assert folder.attempts()[-1].start_step == 5
    before = [step for step in scored if step < STEPS]
    again = [line["step"] for line in numbers(timed.folder) if line["kind"] == "evaluation"]
    assert [step for step in again if step <= max(before)] == before
    assert losses(timed.folder) == losses(other_run(plan, tmp_path))


def other_run(plan: TrainPlan, tmp_path: Path) -> str:
    """The same run, never scored before its end."""
    bare = replace(plan, folder=str(tmp_path / "bare"), evaluate=EvaluateSettings())
    train_here(bare)
    return bare.folder


def test_weights_that_overflow_stop_the_run_and_the_last_good_checkpoint_stays(
    plan: TrainPlan,
) -> None:
    wild = replace(
        plan,
        optimizer=replace(plan.optimizer, learning_rate=3e38, warmup_steps=8, weight_decay=0.0),
        checkpoint=CheckpointSettings(every=1, keep_last=20),
    )
    verdict = train_here(wild)
    assert (verdict.status, verdict.kind) == ("failed", "error")
    assert "Training has diverged: after step" in verdict.reason
    for path in checkpoints(RunFolder(wild.folder).checkpoints):
        with safe_open(path / "model.safetensors", framework="pt") as opened:
            assert all(bool(opened.get_tensor(name).isfinite().all()) for name in opened.keys())  # noqa: SIM118


def test_a_run_that_gets_no_better_ends_with_its_best_checkpoint_kept(
    plan: TrainPlan, tmp_path: Path
) -> None:
    worse = replace(
        plan,
        trainer=replace(plan.trainer, steps=60),
        optimizer=replace(plan.optimizer, learning_rate=3.0, clip=0.0, warmup_steps=8),
        evaluate=EvaluateSettings(every=2, patience=4),
        checkpoint=CheckpointSettings(every=3, keep_best=1, keep_last=2),
    )
    verdict = train_here(worse)
    evaluations = [
        (line["eval/loss"], line["step"])
        for line in RunFolder(worse.folder).lines()
        if line["kind"] == "evaluation"
    ]
    best = min(evaluations)[1]
    assert (verdict.status, verdict.step) == ("done", best + 8)
    kept = [path.name for path in RunFolder(worse.folder).checkpoints.iterdir()]
    assert f"step_{best:08d}-a0001" in kept
    assert train_here(worse).step == verdict.step  # and it does not go on by being started again
    cut = replace(worse, folder=str(tmp_path / "cut"))
    for stop in (best + 3, best + 6):  # nor is its patience new after a resume
        assert train_here(cut, stop_after=stop).status == "stopped"
    assert (train_here(cut).step, numbers(cut.folder)) == (verdict.step, numbers(worse.folder))
