"""`longrow evaluate`: a checkpoint on the held-out documents, with one memory length or several."""

import click

from jobs.entry import Job, Outcome, run


def _lengths(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        lengths = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        lengths = (-1,)
    if any(length < 0 for length in lengths):
        raise click.BadParameter(f"{text!r} must be lengths from 0 up, like 0,128,640.")
    return tuple(dict.fromkeys(lengths))


@click.command("evaluate", cls=Job)
@click.argument("run_name", metavar="RUN|CHECKPOINT")
@click.option("--memory", default="", callback=_lengths, help="Like 0,128; else M and 0.")
@click.option("--rows", default=0, help="Rows of the evaluation; 0 takes those of training.")
@click.option("--segment", default=0, help="Tokens read at a time; 0 takes that of training.")
def command(run_name: str, memory: tuple[int, ...], rows: int, segment: int) -> Outcome:
    """Score every target of the held-out documents once, with each memory length.

    RUN is a run's folder or its name under runs/, of which the newest whole checkpoint is taken.
    """
    from jobs.find import find_checkpoint, run_of
    from jobs.progress import Progress
    from trainer.evaluation import evaluate, no_documents
    from trainer.group import Group
    from trainer.load import best_device, load_model
    from trainer.pictures import loss_by_offset

    checkpoint = find_checkpoint(run_name)
    loaded = load_model(checkpoint, device=best_device())
    store = loaded.open_store()
    if not len(store.doc_ids("validation")):
        raise no_documents(loaded.plan["store"])
    lengths = memory or tuple(dict.fromkeys((loaded.model.config.memory, 0)))
    scores = []
    for length in lengths:
        with Progress(f"memory {length}", unit="segments") as progress:
            count = 0

            def seen(progress: Progress = progress) -> bool:
                nonlocal count
                progress.show(count)
                count += 1
                return False

            score = evaluate(
                loaded.model,
                store,
                Group(device=best_device()),
                step=loaded.step,
                rows=rows or loaded.plan["layout"]["rows"],
                segment=segment or loaded.plan["layout"]["segment"],
                memory=length,
                should_stop=seen,
            )
        if score is not None:
            scores.append(score)
    click.echo(f"{checkpoint.name}, segment {scores[0].segment}, {scores[0].documents} documents")
    click.echo(f"{'memory':>8}  {'nats/token':>10}  {'perplexity':>10}  {'bits/byte':>9}")
    for score in scores:
        click.echo(
            f"{score.memory:>8,}  {score.loss:>10.4f}  {score.perplexity:>10.2f}  "
            f"{score.bits_per_byte:>9.4f}"
        )
    picture = run_of(checkpoint).path / "loss_by_offset_by_memory.png"
    loss_by_offset(scores, picture, title=f"{checkpoint.name}: held-out loss by offset")
    click.echo(f"The same by offset within the document: {picture}")
    return Outcome(facts={"checkpoint": str(checkpoint), "scores": [s.to_json() for s in scores]})


if __name__ == "__main__":
    run(command)
