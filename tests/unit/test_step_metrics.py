"""What the metrics of a step say, held against the documents that the step read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.memory import empty_memory
from model.transformer_xl import TransformerXL
from pipeline.client import RowClient
from pipeline.layout import Layout
from pipeline.server import RowServer
from pipeline.store import Store
from tests.tiny_runs import tiny_plan
from trainer.board import Board, LocalReporter
from trainer.flops import step_flops
from trainer.group import Group
from trainer.loop import train
from trainer.plan import TrainPlan
from trainer.run_folder import RunFolder
from trainer.settings import EvaluateSettings
from trainer.step import Objective, Rows, StepPlan, backward

STEPS, ROWS, LENGTH, PEAK_TFLOPS = 30, 30, 16, 0.5


@pytest.fixture(scope="module")
def plan(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainPlan:
    """As many rows as make some of them meet in a document at the end of an epoch."""
    plan = tiny_plan(tiny_store, tmp_path_factory.mktemp("run"), steps=STEPS)
    return replace(
        plan,
        layout=Layout(rows=ROWS, segment=LENGTH, seed=3),
        trainer=replace(plan.trainer, peak_tflops=PEAK_TFLOPS),
        evaluate=EvaluateSettings(),
    )


@pytest.fixture(scope="module")
def told(plan: TrainPlan) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        real, looks = RowClient.ready, [0]

        def ready(client: RowClient) -> bool:  # the batch of step 7 is there at the third look
            if client.state.step == 6 and looks[0] < 2:
                client._want()
                looks[0] += 1
                return False
            return real(client)

        patch.setattr(RowClient, "ready", ready)
        reporter = LocalReporter(Board())
        train(plan, Group(device=torch.device("cpu")), reporter, lambda _rows: None)
    lines = [line for line in RunFolder(plan.folder).lines() if line["kind"] == "step"]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    return lines


@pytest.fixture(scope="module")
def read(plan: TrainPlan) -> list[Any]:
    """The batches of all steps, read again."""
    server = RowServer(Store.open(plan.store), plan.layout)
    block = server.read(server.initial_state(), STEPS, (0, ROWS))
    assert block.steps == STEPS
    return [block.batch(index) for index in range(STEPS)]


def of(told: list[dict[str, Any]], key: str) -> list[Any]:
    return [line[key] for line in told]


def test_documents_that_begin_and_rows_that_read_the_same_are_counted(
    told: list[dict[str, Any]], read: list[Any]
) -> None:
    starts = [int(((batch.offset == 0) & (batch.doc_id >= 0)).sum()) for batch in read]
    assert of(told, "data/document_starts") == starts
    assert of(told, "data/epoch") == [int(max(epochs)) for epochs in _epochs(read)]
    last = [batch.doc_id[:, -1] for batch in read]  # what a row reads when the step is over
    duplicates = [ROWS - len(np.unique(documents)) for documents in last]
    assert of(told, "data/duplicate_rows") == duplicates
    assert 0 < sum(count > 0 for count in duplicates) < STEPS


def _epochs(read: list[Any]) -> list[list[int]]:
    """Of each row at the end of each step: the times that its document began anywhere, less one."""
    begun: dict[int, int] = {}
    now = [[0] * ROWS for _ in read]
    row_epoch = [0] * ROWS
    for step, batch in enumerate(read):
        for row, (documents, offsets) in enumerate(zip(batch.doc_id, batch.offset, strict=True)):
            for document in documents[offsets == 0]:
                begun[int(document)] = begun.get(int(document), -1) + 1
                row_epoch[row] = begun[int(document)]
        now[step] = list(row_epoch)
    return now


def test_the_share_of_usable_memory_grows_to_the_whole(
    plan: TrainPlan, told: list[dict[str, Any]]
) -> None:
    most = plan.model.memory
    shares = [min(most, LENGTH * step) / most for step in range(STEPS)]
    assert of(told, "train/usable_memory") == pytest.approx(shares)


def test_loss_norm_targets_and_rate_are_those_of_the_step(
    plan: TrainPlan, told: list[dict[str, Any]], read: list[Any]
) -> None:
    batch = read[0]
    rows = Rows(
        **{
            name: torch.from_numpy(getattr(batch, name).astype("int64"))
            for name in ("tokens", "targets", "offset")
        },
        numbers=torch.arange(ROWS),
    )
    model = TransformerXL(plan.model, seed=plan.seed)
    targets = int((batch.targets >= 0).sum())
    steps = StepPlan(accumulation=1, clip=0.0, precision="fp32", seed=plan.seed, world_size=1)
    loss, _ = backward(
        Objective(model), rows, empty_memory(plan.model, ROWS), plan=steps, step=0, targets=targets
    )
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    norm = sum(float(gradient.double().square().sum()) for gradient in gradients) ** 0.5
    first = told[0]
    assert first["train/loss"] == pytest.approx(float(loss) / targets, rel=1e-5)
    assert first["train/grad_norm"] == pytest.approx(norm, rel=1e-4)
    rates = of(told, "train/learning_rate")[: plan.optimizer.warmup_steps]
    assert rates == pytest.approx([1e-2 * step / 3 for step in (1, 2, 3)])
    sums = np.cumsum([int((batch.targets >= 0).sum()) for batch in read])
    assert of(told, "train/targets") == sums.tolist()
    assert set(of(told, "train/skipped_steps")) == {0}


def test_speed_use_and_waits_are_of_the_seconds_of_the_step(
    plan: TrainPlan, told: list[dict[str, Any]], read: list[Any]
) -> None:
    work = step_flops(plan.model, rows=ROWS, segment=LENGTH)
    for line, batch in zip(told, read, strict=True):
        seconds = line["train/step_seconds"]
        targets = int((batch.targets >= 0).sum())
        assert line["train/tokens_per_second"] == pytest.approx(targets / seconds)
        speed = line["train/model_flops_per_second"]
        assert speed == pytest.approx(work / seconds)
        assert line["train/model_flop_use"] == pytest.approx(speed / (PEAK_TFLOPS * 1e12))
        assert line["system/host_memory_bytes"] > 1e7
        assert 0 <= line["data/wait_seconds"] <= seconds
    assert told[6]["data/wait_seconds"] >= 0.1  # two looks, 0.05 s apart
