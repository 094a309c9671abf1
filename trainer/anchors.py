"""A run's anchors: states of its rows along the way, in its folder.

anchors/step_SSSSSSSS.json: one every 4,096 steps, and where an attempt began. Each checkpoint is
one too, as long as it is kept. From the nearest of them any batch of the run is read again.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.anchors import EVERY, Anchor
from pipeline.errors import DataError
from pipeline.files import write_whole
from pipeline.layout import Layout
from pipeline.rows_state import RowsState
from trainer.checkpoint import living, read_state, step_of
from trainer.plan import TrainPlan
from trainer.run_folder import RunFolder


def anchor_is_due(step: int) -> bool:
    """Whether an anchor is kept when `step` steps are done."""
    return step % EVERY == 0


def anchor_file(folder: RunFolder, step: int) -> Path:
    """Where the anchor of `step` steps done is."""
    return folder.anchors / f"step_{step:08d}.json"


def keep_anchor(folder: RunFolder, plan: TrainPlan, state: RowsState) -> None:
    """Write an anchor, whole."""
    anchor = Anchor(
        store=plan.store,
        store_fingerprint=plan.store_fingerprint,
        layout=plan.layout,
        state=state,
    )
    folder.anchors.mkdir(exist_ok=True)
    path = anchor_file(folder, state.step)
    write_whole(str(path), (json.dumps(anchor.to_json()) + "\n").encode())
    folder.put_up(path)


def nearest_anchor(
    folder: RunFolder, step: int, say: Callable[[str], None] = lambda _: None
) -> Anchor | None:
    """The whole anchor, or checkpoint, that is nearest to `step` steps done and not past it.

    Of a checkpoint and an anchor of one step the anchor is taken: at a change of the rows it holds
    those that came after.

    Args:
        folder: The run's.
        step: Steps done.
        say: Is told of each damaged one that is passed over.
    """
    for _, is_anchor, path in sorted(_places(folder, step), reverse=True):
        try:
            return _read(path) if is_anchor else _of_checkpoint(path)
        except DataError as error:
            # An older one gives the same with a longer walk, but for rows that began right here.
            say(
                f"{path} is damaged and passed over for an older one ({error}). If `--reshard` "
                "dealt other rows there, what is shown after it is not what was read."
            )
    return None


def _places(folder: RunFolder, step: int) -> Iterator[tuple[int, bool, Path]]:
    for path in folder.anchors.glob("step_*.json"):
        if (done := int(path.stem.removeprefix("step_"))) <= step:
            yield done, True, path
    for path in living(folder.checkpoints, folder.attempts()):
        if (done := step_of(path)) <= step:
            yield done, False, path


def _read(path: Path) -> Anchor:
    try:
        return Anchor.from_json(json.loads(path.read_bytes()))
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}.") from error


def _of_checkpoint(path: Path) -> Anchor:
    state = read_state(path)
    plan = state["plan"]
    return Anchor(
        store=plan["store"],
        store_fingerprint=plan["store_fingerprint"],
        layout=Layout(**plan["layout"]),
        state=RowsState.from_json(state["rows"]),
    )
