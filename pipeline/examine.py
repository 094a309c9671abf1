"""A tokenizer on real texts: how short it writes them, and what it loses."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.tokenizer import Tokenizer

_PROBES = {  # what sentencepiece's defaults lose, one by one
    "line ends": "a\nb",
    "CR LF": "a\r\nb",
    "tabs": "a\tb",
    "runs of blanks": "a  b",
    "blanks at the start": " a",
    "blanks at the end": "a ",
    "a BOM": "\ufeffa",
    "full-width letters": "\uff21",
    "ligatures and ellipses": "\ufb01 \u2026",
    "combining marks": "e\u0301",
    "rare letters": "\U00012345",
    "U+2581": "\u2581a",
    "NUL": "a\x00b",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerReport:
    """What a tokenizer made of a sample.

    Attributes:
        documents: Of the sample.
        bytes: Of text in UTF-8.
        tokens: They became.
        bytes_per_token: Of both.
        fallback: Share of the tokens that spell a letter in bytes.
        unknown: Share of the tokens that stand for an unknown letter.
        round_trip_failures: Documents that come back changed.
        loses: What does not come back, in words; nothing if the tokenizer is lossless.
    """

    documents: int
    bytes: int
    tokens: int
    bytes_per_token: float
    fallback: float
    unknown: float
    round_trip_failures: int
    loses: tuple[str, ...]


def examine(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizerReport:
    """Encode and decode every text."""
    documents = num_bytes = tokens = fallback = unknown = failures = 0
    for text in texts:
        ids = tokenizer.encode(text)
        documents += 1
        num_bytes += len(text.encode())
        tokens += len(ids)
        fallback += tokenizer.count_bytes(ids)
        unknown += tokenizer.count_unknown(ids)
        failures += tokenizer.decode(ids) != text
    return TokenizerReport(
        documents=documents,
        bytes=num_bytes,
        tokens=tokens,
        bytes_per_token=num_bytes / max(tokens, 1),
        fallback=fallback / max(tokens, 1),
        unknown=unknown / max(tokens, 1),
        round_trip_failures=failures,
        loses=losses(tokenizer),
    )


def losses(tokenizer: Tokenizer) -> tuple[str, ...]:
    """What the tokenizer does not give back, in words."""
    return tuple(
        name
        for name, probe in _PROBES.items()
        if tokenizer.decode(tokenizer.encode(probe)) != probe
    )
