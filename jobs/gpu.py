"""`make gpu`: what can only be seen on a GPU, in one script that is meant for four minutes.

It needs torch, triton, numpy, pyarrow, sentencepiece and safetensors, and nothing else: no Ray, no
MLflow, no network, no installation. Each line is a check or a measurement, told when it is there;
one that fails is told with its error, and the others go on.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from jobs import gpu_equal, gpu_run, gpu_speed
from model.config import Backend
from trainer.settings import DETERMINISTIC_CUBLAS

LIMIT_S = 225.0  # nothing new is begun after it


class Report:
    """What was found, told as it comes."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.lines: list[dict[str, Any]] = []

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return all(line["ok"] for line in self.lines)

    def section(self, name: str, act: Callable[[], Iterable[dict[str, Any]]]) -> None:
        """Tell what `act` finds; its error is one more line."""
        if time.monotonic() - self.began_s > LIMIT_S:
            self._add(name, {"name": name, "ok": False, "error": f"not begun in {LIMIT_S:.0f} s"})
            return
        try:
            for line in act():
                self._add(name, line)
        except Exception as error:  # noqa: BLE001 - told, and the exit code says so
            told = "".join(traceback.format_exception(error))
            self._add(name, {"name": name, "ok": False, "error": told})

    def _add(self, section: str, line: dict[str, Any]) -> None:
        at_s = round(time.monotonic() - self.began_s, 1)
        self.lines.append({"section": section, "at_seconds": at_s} | line)
        facts = {key: value for key, value in line.items() if key not in ("name", "ok")}
        words = ", ".join(f"{key} {_told(value)}" for key, value in facts.items())
        held = "ok  " if line["ok"] else "FAIL"
        print(f"{at_s:6.1f} s  {held} {section}: {line['name']}; {words}", flush=True)


def options() -> argparse.ArgumentParser:
    """What may be said to it; click may not be there."""
    parser = argparse.ArgumentParser(prog="python -m jobs.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to see it run")
    parser.add_argument("--quick", action="store_true", help="tiny models, to see that it runs")
    parser.add_argument("--out", type=Path, help="a JSON file for all that was found")
    return parser


def main(words: list[str] | None = None) -> int:
    """Check and measure; 0 if all held, 1 if something did not, 2 without a GPU."""
    given = options().parse_args(words)
    for name, value in DETERMINISTIC_CUBLAS.items():
        os.environ.setdefault(name, value)  # read where the device is first used
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu shows that the script runs.", file=sys.stderr)
        return 2
    report = Report()
    measure(report, device, quick=given.quick)
    if given.out:
        about = {"torch": str(torch.__version__), "device": _about(device), "lines": report.lines}
        given.out.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    bad = [line["name"] for line in report.lines if not line["ok"]]
    print(f"{len(report.lines)} lines, {len(bad)} failed{': ' if bad else ''}{'; '.join(bad)}")
    return 0 if report.ok else 1


def measure(report: Report, device: torch.device, *, quick: bool) -> None:
    """All sections, the cheap and certain ones first."""
    backends: tuple[Backend, ...] = ("dense", "sdpa", "chunked")
    timed: tuple[Backend, ...] = ("dense", "chunked")
    if find_spec("triton") is not None and device.type == "cuda":
        backends, timed = (*backends, "triton"), ("triton", *timed)
    report.section("machine", lambda: [{"name": _about(device), "ok": True, "backends": backends}])
    cases = gpu_equal.CASES[:5] if quick else gpu_equal.CASES
    report.section("equality", lambda: gpu_equal.compare(device, backends, cases=cases))
    report.section("step", lambda: [gpu_run.quiet_step(device)])
    with tempfile.TemporaryDirectory(prefix="longrow-gpu-") as folder:
        few = {"model": gpu_run.SMALL, "documents": 60, "vocab_size": 400}
        run = partial(gpu_run.checked_run, device, Path(folder))
        report.section("run", lambda: run(steps=20, **few) if quick else run(steps=100))
    sizes = {"size": 64, "copy_bytes": 1 << 16} if quick else {}
    report.section("ceilings", lambda: [gpu_speed.ceilings(device, **sizes)])
    measured = "bf16_flops_per_second"
    ceiling = next((found[measured] for found in report.lines if measured in found), None)
    papers = tuple(map(gpu_speed.small, gpu_speed.PAPER)) if quick else gpu_speed.PAPER
    for paper in papers:
        report.section(
            "training step",
            lambda paper=paper: gpu_speed.steps(
                device, (paper,), timed, ceiling=ceiling, repeats=2 if quick else 10
            ),
        )


def _about(device: torch.device) -> str:
    if device.type != "cuda":
        return "cpu"
    facts = torch.cuda.get_device_properties(device)
    return f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"


def _told(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
