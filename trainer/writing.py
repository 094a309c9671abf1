"""Text that a model goes on to write, as it comes."""

from collections.abc import Iterator

from model.generate import Sampling, generate_rows
from model.transformer_xl import TransformerXL
from pipeline.tokenizer import Tokenizer

AS_IT_IS = Sampling()  # every token by the model's own probability


def write(
    model: TransformerXL,
    tokenizer: Tokenizer,
    prompts: list[str],
    *,
    max_tokens: int,
    sampling: Sampling = AS_IT_IS,
    memory: int | None = None,
) -> Iterator[list[str]]:
    """Go on with each prompt, read as the beginning of a document.

    Args:
        model: In evaluation.
        tokenizer: The one it was trained with.
        prompts: Texts of any lengths, empty ones too.
        max_tokens: Tokens to write for a prompt at most.
        sampling: How to choose the next one.
        memory: Tokens to look back on; None takes the model's.

    Yields:
        For each prompt what has come to it since the last time; characters are given out whole,
        though a token may hold a part of one.
    """
    ids = [[tokenizer.bos, *tokenizer.encode(prompt).tolist()] for prompt in prompts]
    written: list[list[int]] = [[] for _ in prompts]
    given = [0] * len(prompts)
    for chosen in generate_rows(
        model, ids, eod=tokenizer.eod, max_tokens=max_tokens, sampling=sampling, memory=memory
    ):
        news: list[str] = []
        for row, token in enumerate(chosen):
            if token is not None and token != tokenizer.bos:
                written[row].append(token)
            text = tokenizer.decode(written[row]).rstrip("\ufffd")
            news.append(text[given[row] :])
            given[row] = max(given[row], len(text))
        yield news
