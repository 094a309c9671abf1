"""`longrow generate`: text from a run's newest checkpoint, as it comes."""

import click

from jobs.entry import Job, Outcome, run
from jobs.visible import echo


@click.command("generate", cls=Job)
@click.argument("run_name", metavar="RUN|CHECKPOINT|FOLDER")
@click.option("--prompt", "prompts", multiple=True, help="Text to go on with; may be repeated.")
@click.option(
    "--tokens",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Tokens to write at most.",
)
@click.option("--temperature", default=0.8, show_default=True, help="0 takes the likeliest token.")
@click.option("--top-k", default=0, show_default=True, help="Among so many likeliest; 0 all.")
@click.option("--top-p", default=0.95, show_default=True, help="Among those that have this share.")
@click.option("--seed", default=0, show_default=True, help="Of the draws.")
@click.option("--memory", type=int, help="Tokens to look back on; the model's if not given.")
@click.option("--store", default="", help="A store of its tokenizer, where FOLDER has none.")
def command(
    run_name: str,
    prompts: tuple[str, ...],
    tokens: int,
    memory: int | None,
    store: str,
    **sampling: float,
) -> Outcome:
    """Write on after each prompt, read as the beginning of a document.

    RUN is a run's folder or its name under runs/, of which the newest whole checkpoint is taken;
    FOLDER one that `longrow export` or `import-weights` wrote. Several prompts are one batch: the
    text of the first comes as it is written, the others follow.
    """
    from jobs.find import load
    from model.generate import Sampling
    from trainer.evaluation import Wanted
    from trainer.room import check_room
    from trainer.writing import write

    chosen = Sampling(
        temperature=sampling["temperature"],
        top_k=int(sampling["top_k"]),
        top_p=sampling["top_p"],
        seed=int(sampling["seed"]),
    )
    found = load(run_name, store=store)
    loaded, tokenizer = found.loaded, found.loaded.tokenizer()
    texts = list(prompts) or [""]
    kept = loaded.model.config.memory if memory is None else memory
    check_room(
        loaded.model.config,
        Wanted(rows=len(texts), segment=1, memory=max(0, kept)),
        inputs=tokens,
        device=loaded.model.content_bias.device,
    )
    whole = ["" for _ in texts]
    echo(texts[0], nl=False, bold=True)
    for news in write(
        loaded.model, tokenizer, texts, max_tokens=tokens, sampling=chosen, memory=memory
    ):
        whole = [text + new for text, new in zip(whole, news, strict=True)]
        echo(news[0], nl=False)
    echo()
    for prompt, text in zip(texts[1:], whole[1:], strict=True):
        echo(f"\n{prompt}", nl=False, bold=True)
        echo(text)
    facts = [{"prompt": p, "text": t} for p, t in zip(texts, whole, strict=True)]
    return Outcome(facts={"checkpoint": found.shown, "texts": facts})


if __name__ == "__main__":
    run(command)
