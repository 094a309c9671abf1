"""Where the numbers of an evaluation stay: JSON and a picture in the run's folder, and MLflow."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.find import Found
from jobs.ours import record_of
from jobs.track import OFF
from jobs.visible import echo
from pipeline.files import write_whole
from trainer.errors import ConfigError


def keep(
    found: Found,
    name: str,
    *,
    facts: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    draw: Callable[[Path], None],
) -> list[str]:
    """Write an evaluation down.

    Args:
        found: Whose it is.
        name: Of its files, before the suffix; not `step_...`, the training's own evaluations.
        facts: All of it, the settings too.
        rows: The table, for MLflow.
        draw: Draws its picture into a file.

    Returns:
        The JSON and the picture.
    """
    name += found.suffix
    place = evaluations_of(found)
    place.mkdir(exist_ok=True)
    told, picture = place / f"{name}.json", place / f"{name}.png"
    draw(picture)
    text = json.dumps(facts, indent=1) + "\n"
    write_whole(str(told), text.encode())
    _record(found, name, rows=rows, picture=picture)
    if found.folder is None:
        return [str(told), str(picture)]
    for path in (told, picture):
        found.folder.put_up(path)
    return [found.folder.named(str(path)) for path in (told, picture)]


def evaluations_of(found: Found) -> Path:
    """Where the evaluations of a model lie: in its run, in its folder, or beside the checkpoint."""
    if found.folder is not None:
        return found.folder.evaluations
    place = found.path if (found.path / "model.json").is_file() else found.path.parent
    return place / "evaluations"


def _record(found: Found, name: str, *, rows: Sequence[Mapping[str, Any]], picture: Path) -> None:
    """Add it to the run's record in MLflow, where it has one and tracking is not off."""
    folder = found.folder
    config = (folder.read_json("config.json") if folder else None) or {}
    if folder is None or config.get("tracking", {}).get("uri") == OFF:
        return
    digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:8]
    tables = {f"evaluations/{name}-{digest}.json": rows}
    try:
        known = record_of(folder)
        if known and known["run_id"]:
            from trainer.mlflow_run import add_to_run

            add_to_run(known["uri"], known["run_id"], files=[picture], tables=tables)
    except ConfigError as error:
        echo(f"longrow: {error}", err=True)
