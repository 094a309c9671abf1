"""What a person sees at the end of a run: a table, and where to look further."""

import sys
from collections.abc import Mapping
from pathlib import Path

from jobs.config import RunConfig
from jobs.drive import Driven, folder_of
from jobs.entry import Exit, Outcome
from jobs.track import OFF, uri_of
from jobs.visible import echo
from pipeline.files import local_path


def finish(config: RunConfig, driven: Driven) -> Outcome:
    """Print the closing table and where to look, or why there is none; give the outcome."""
    facts = driven.summary.to_json()
    if driven.code is Exit.DONE:
        echo(table(facts))
        echo(f"\nLook further:\n{ways_on(config)}")
    else:
        echo(f"longrow: {driven.message}", err=True)
        facts |= {"error": driven.message} if driven.code in _ERRORS else {}
    return Outcome(facts=facts, code=driven.code)


_ERRORS = (Exit.FAILED, Exit.BAD_USE, Exit.BAD_DATA)


def table(facts: Mapping[str, object]) -> str:
    """Facts as two columns; a float with four digits behind the point."""
    width = max(len(key) for key in facts)
    return "\n".join(f"{key:<{width}}  {_cell(value)}" for key, value in facts.items())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4f}" if abs(value) < 100 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def ways_on(config: RunConfig) -> str:
    """The exact commands to look further at a run."""
    folder = folder_of(config)
    shown = _shown(Path(folder.place)) if local_path(folder.place) else folder.place
    longrow, uri = _command("longrow"), uri_of(config, folder)
    commands = {
        f"{longrow} show {shown}": "what the run holds",
        f"{longrow} evaluate {shown} --memory 0,64,256": "with other memory lengths",
        f"{longrow} generate {shown} --prompt 'The'": "more text",
        f"{longrow} resume {shown} --set trainer.steps={config.trainer.steps * 2}": "train on",
    }
    if "://" in uri and not uri.startswith("sqlite:"):
        commands = {uri: "its curves, in a browser"} | commands
    elif uri != OFF:
        ui = f"{_command('mlflow')} ui --backend-store-uri {uri}"
        commands = {ui: "its curves, in a browser"} | commands
    return "\n".join(f"  {command}\n      {why}" for command, why in commands.items())


def _shown(folder: Path) -> str:
    try:
        return str(folder.relative_to(Path.cwd()))
    except ValueError:
        return str(folder)


def _command(name: str) -> str:
    """As it can be typed here: by its name where that is found, else by its path."""
    import shutil

    beside = Path(sys.executable).parent / name
    return name if shutil.which(name) else _shown(beside)
