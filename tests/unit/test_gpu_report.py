"""What `make gpu` says where a part of it fails."""

import pytest
import torch

from jobs import gpu_equal, gpu_run, gpu_speed
from jobs.gpu import Report, measure


def test_steps_are_timed_though_the_ceilings_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    def steps(*_: object, ceiling: float | None, **__: object) -> list[dict[str, object]]:
        return [{"name": "a model", "ok": True, "ceiling": ceiling}]

    monkeypatch.setattr(gpu_equal, "compare", lambda *_, **__: [])
    monkeypatch.setattr(gpu_run, "quiet_step", lambda _: {"name": "quiet", "ok": True})
    monkeypatch.setattr(gpu_run, "checked_run", lambda *_, **__: [])
    monkeypatch.setattr(gpu_speed, "ceilings", fails)
    monkeypatch.setattr(gpu_speed, "steps", steps)
    report = Report()
    measure(report, torch.device("cpu"), quick=True)
    assert [line["ok"] for line in report.lines if line["section"] == "ceilings"] == [False]
    timed = [line for line in report.lines if line["section"] == "training step"]
    assert len(timed) == len(gpu_speed.PAPER)
    assert all(line["ceiling"] is None for line in timed)
