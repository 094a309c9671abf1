"""A run whose folder is on S3 is the run of a local folder, killed and gone on with."""

import json
import signal
import time
from pathlib import Path

import fsspec
import pytest

from jobs.status import of_folder
from pipeline import steady
from tests.command import code_of
from tests.integration.test_resume import LONG, Ranks, losses
from tests.tiny_runs import TOML
from trainer.checkpoint import checkpoints, newest_of, step_of
from trainer.remote_run import RemoteRun

pytestmark = pytest.mark.filterwarnings("ignore")  # of boto and moto, which are not ours


class RemoteRanks(Ranks):
    """The same processes, with their run in a bucket."""

    def __init__(self, folder: Path, store: Path, bucket: str) -> None:
        super().__init__(folder, store)
        self.url = f"{bucket}/runs/run"
        text = self._config.read_text().replace(str(folder / "runs"), f"{bucket}/runs")
        text = text.replace("every = 5", "every = 25")
        self._config.write_text(text)
        self._bucket = fsspec.filesystem("s3", use_listings_cache=False)

    def kill_after(self, world_size: int, checkpoint: int) -> None:
        """Train until so many checkpoints have been committed, then SIGKILL all."""
        processes = self._start(world_size)
        deadline = time.monotonic() + 120
        while not self._committed(checkpoint):
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in processes)
            time.sleep(0.05)
        for process in processes:
            process.send_signal(signal.SIGKILL)
        self._end(processes, code=-signal.SIGKILL)

    def _committed(self, step: int) -> bool:
        names = self._bucket.find(f"{self.url}/checkpoints")
        done = [name.split("/")[-2] for name in names if name.endswith("/manifest.json")]
        return any(int(name[5:13]) >= step for name in done)


def test_two_workers_killed_and_started_again_repeat_every_bit_of_a_local_run(
    tiny_store: Path, tmp_path: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    local = Ranks(tmp_path / "local", tiny_store)
    local.train(2)
    ranks = RemoteRanks(tmp_path / "remote", tiny_store, bucket)
    ranks.kill_after(2, 50)
    killed = RemoteRun(ranks.url)
    last = max(map(step_of, checkpoints(killed.checkpoints)))
    assert 50 <= last < LONG
    assert losses_of(killed)[:last] == losses(local.folder)[:last]
    ranks.train(2)
    run = RemoteRun(ranks.url)
    assert losses_of(run) == losses(local.folder)
    first, second = run.attempts()
    assert first.number == 1
    assert second.start_step >= last
    newest, passed = newest_of(run, run.attempts())
    assert newest is not None
    assert (step_of(newest), passed) == (LONG, [])
    assert run.exists("summary.json")
    assert run.exists("loss.png")
    summary = json.loads(run.mirror.read("summary.json") or b"")
    assert summary["checkpoint"] == f"{ranks.url}/checkpoints/{newest.name}"
    assert not (Path.cwd() / "s3:").exists()
    for words in (["show"], ["generate", "--tokens", "3"], ["check"], ["evaluate"]):
        assert code_of(*words[:1], ranks.url, *words[1:]) == 0, words
    evaluations = [name for name in run.mirror.files("evaluations") if "memory_step" in name]
    assert len(evaluations) == 2  # JSON and picture
    assert f"{ranks.url}/evaluations/memory_step" in capsys.readouterr().out


def test_one_command_begins_and_resumes_in_a_bucket_that_takes_one_writer(
    tiny_store: Path, tmp_path: Path, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{bucket}/runs/run"
    config = tmp_path / "run.toml"
    config.write_text(TOML.format(folder=f"{bucket}/runs", store=tiny_store))
    sets = ["--set", "trainer.steps=6", "--set", "cluster.launcher=local"]
    assert code_of("train", str(config), *sets) == 2  # no place for MLflow's file
    assert "Set tracking.uri" in capsys.readouterr().err
    assert RemoteRun(url).is_new()
    sets += ["--set", "tracking.uri=off", "--set", "checkpoint.every=2"]
    assert code_of("train", str(config), *sets) == 0
    assert code_of("train", str(config), *sets, "--resume", "never") == 2
    assert code_of("resume", url, "--set", "trainer.steps=8") == 0
    run = RemoteRun(url)
    assert [step for step, _ in losses_of(run)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [one.start_step for one in run.attempts()] == [0, 6]
    number = run.next_attempt()
    taken = json.dumps({"number": number}).encode()
    assert run.mirror.create(f"attempts/{number:04d}.json", taken)
    assert not run.mirror.create(f"attempts/{number:04d}.json", b"another")
    assert len(run.mirror.files("anchors")) == 2
    fsspec.filesystem("s3").pipe(f"{url}/anchors/other", b"")  # by another process, as it were
    assert run.exists("anchors/other"), "a listing was remembered"
    plain = run.mirror._system
    with pytest.raises(Exception, match=r"PreconditionFailed|exists|pre-conditions|412"):
        plain.pipe_file(run.mirror._place("config.json"), b"x", mode="create")  # S3 itself refuses


def losses_of(run: RemoteRun) -> list[tuple[int, float]]:
    return [(one["step"], one["train/loss"]) for one in run.lines() if one["kind"] == "step"]


def test_the_status_of_a_job_tells_the_steps_of_a_run_at_a_url(
    tiny_store: Path, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "run.toml"
    text = TOML.format(folder=f"{bucket}/runs", store=tiny_store)
    config.write_text(
        f'{text}[trainer]\nsteps = 4\n[tracking]\nuri = "off"\n[cluster]\nlauncher = "local"\n'
    )
    place = f"{bucket}/runs/run"
    assert of_folder(place) == {}  # the job has not begun it yet
    assert code_of("train", str(config)) == 0
    told = of_folder(place)
    assert told == {"step": 4, "of": 4, "attempts": 1, "checkpoint": "step_00000004-a0001"}
    monkeypatch.setattr(steady, "FIRST_WAIT_S", 0.0)
    for nobody in (f"{bucket}-of-nobody/runs/run", "nothing://known/run"):
        assert set(of_folder(nobody)) <= {"unseen"}
    assert "unseen" in of_folder("nothing://known/run")
