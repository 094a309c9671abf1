"""The command `longrow`: a list of commands, each in its own file, loaded when it is called."""

from importlib import import_module
from importlib.metadata import version

import click

from jobs.entry import DISTRIBUTION, refuse_credentials, run
from jobs.visible import echo

# In the order of a first day. The file of a command is jobs/NAME.py, and its object is `command`.
COMMANDS = {
    "demo": "Train a small model on real documents, and show what its memory is worth.",
    "tokenizer": "Train a lossless tokenizer on a corpus.",
    "build": "Tokenize a corpus into a store.",
    "verify": "Check every byte of a store, of a checkpoint, or of a run's checkpoints.",
    "train": "Train the run that the TOML file CONFIG describes.",
    "submit": "Train the run of the TOML file CONFIG as a job on a Ray cluster.",
    "status": "Say how a job on a cluster is, and the last that it said.",
    "logs": "Print what a job on a cluster said, and with -f what it says to its end.",
    "list": "List the jobs of a cluster, the newest first.",
    "resume": "Go on with a run from its newest whole checkpoint.",
    "stop": "Have a run save its current step and end, from another shell or machine.",
    "evaluate": "Score every target of the held-out documents once, with each memory length.",
    "check": "Try nine points at which a Transformer-XL goes wrong on a run's own model and store.",
    "generate": "Write on after each prompt, read as the beginning of a document.",
    "import-weights": "Turn published weights into a folder that `evaluate` and `generate` read.",
    "export": "Write a checkpoint's weights to a folder, as safetensors and JSON.",
    "doctor": "Look for what would stop a run on this machine, and say what to do about it.",
    "pin": "Keep a checkpoint for good, whatever newer ones come.",
    "show": "Say what a store, a run or a checkpoint holds.",
    "bench": "Measure a part of the system beside bare loops of the libraries below it.",
    "runs": "List the runs in a folder, or mark those that died as KILLED in MLflow.",
}


class Commands(click.Group):
    """COMMANDS as a group: help needs none of them, a call needs one."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module(f"jobs.{cmd_name.replace('-', '_')}").command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_credentials(ctx, args)
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(
                f"There is no command {args[0]!r}. There are: {', '.join(COMMANDS)}.", ctx
            ) from error


@click.command(cls=Commands, invoke_without_command=True)
@click.version_option(version(DISTRIBUTION), prog_name=DISTRIBUTION)
@click.pass_context
def longrow(ctx: click.Context) -> None:
    """Pretrain Transformer-XL language models in which memory belongs to a row.

    `longrow COMMAND --help` says more about a command. Exit codes: 0 done, 2 bad use or config,
    3 bad data, 130 and 143 stopped by Ctrl-C and SIGTERM, 1 anything else.
    """
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


def main() -> None:
    """The console script's entry."""
    run(longrow)


if __name__ == "__main__":
    main()
