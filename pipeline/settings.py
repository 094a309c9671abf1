"""What a tokenizer and a build may be told: frozen, checked once, never changed."""

import codecs
import re
from dataclasses import dataclass
from typing import Literal

from pipeline.corpus import SourceOptions

LEAST_DOCUMENT_TOKENS = 64


class SettingsError(ValueError):
    """A setting is out of its range; `longrow` exits with 2."""


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise SettingsError(message)


def _is_encoding(name: str) -> bool:
    try:
        decoder = codecs.getincrementaldecoder(name)(errors="backslashreplace")  # idna knows none
        return "a".encode(name) != b"" and isinstance(decoder.decode(b"a"), str)
    except (LookupError, ValueError):
        return False


_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}


def _unescaped(text: str) -> str:
    """A shell cannot easily pass a line end."""
    return re.sub(r"\\[ntr\\]", lambda found: _ESCAPES[found[0]], text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings:
    """How text becomes ids.

    Attributes:
        model_type: `unigram` is 4-5 times faster than `bpe`; `byte` needs no training.
        vocab_size: Ids in all, begin and end of document among them; `byte` has 258 of them.
        sample_bytes: Text (UTF-8) to train on, drawn over the whole corpus.
        seed: Of the draw.
    """

    model_type: Literal["unigram", "bpe", "char", "byte"] = "unigram"
    vocab_size: int = 16_384
    sample_bytes: int = 10_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        _require(
            self.model_type in ("unigram", "bpe", "char", "byte"),
            f"tokenizer.model_type = {self.model_type!r} must be unigram, bpe, char or byte.",
        )
        _require(
            self.vocab_size > 262 or self.model_type == "byte",
            f"tokenizer.vocab_size = {self.vocab_size} must be above 262: 256 bytes, unknown, "
            "begin, end, newline, tab and return are always there.",
        )
        _require(
            self.sample_bytes > 0,
            f"tokenizer.sample_bytes = {self.sample_bytes} must be above 0.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """How a corpus becomes a store.

    Attributes:
        held_out: Part of the documents that goes to validation, chosen by hash of the text.
        max_bad: Bad records a build bears: a number (`"20"`) or a share of all (`"0.1%"`).
        max_damaged: Damaged archives it bears: what they lost can not be counted in records.
        task_bytes: Bytes on disk of a task, and so about of a part.
        text_key: Key of the text in a JSON record; dots lead into nested objects.
        id_key: Key of the document's id there.
        max_record_bytes: A longer record is rejected.
        max_document_tokens: Longer texts are cut, at line ends, into documents of their own; 0
            leaves every text whole.
        encoding: Of text files (jsonl, json, csv, txt, wikitext), as Python names it.
        newlines: `keep` changes nothing; `lf` turns CR LF in a text into LF.
        separator: What stands between two documents of a text file, line ends and tabs written as
            in JSON; empty takes a file as a document.
        dedup: `exact` leaves out texts that stood before in the store, and lists them.
        skip: Records to leave out, by id or as SOURCE:RECORD.
        document_timeout_s: Seconds that tokenizing one text may take before the build gives up.
    """

    held_out: float = 0.05
    max_bad: str = "0.1%"
    max_damaged: int = 0
    task_bytes: int = 32 << 20
    text_key: str = "text"
    id_key: str = "id"
    max_record_bytes: int = 1 << 30
    max_document_tokens: int = 0
    encoding: str = "utf-8"
    newlines: Literal["keep", "lf"] = "keep"
    separator: str = ""
    dedup: Literal["off", "exact"] = "off"
    skip: tuple[str, ...] = ()
    document_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        _require(
            0 <= self.held_out < 1, f"held_out = {self.held_out} must be at least 0 and below 1."
        )
        _require(
            re.fullmatch(r"\d+|\d+(\.\d+)?%", self.max_bad) is not None,
            f'max_bad = {self.max_bad!r} must be a number of records ("20") or a share ("0.1%").',
        )
        _require(self.max_damaged >= 0, f"max_damaged = {self.max_damaged} must not be negative.")
        _require(self.task_bytes > 0, f"task_bytes = {self.task_bytes} must be above 0.")
        _require(
            self.max_record_bytes > 0,
            f"max_record_bytes = {self.max_record_bytes} must be above 0.",
        )
        _require(bool(self.text_key), "text_key must name a key.")
        for name, given in (
            ("text_key", self.text_key),
            ("id_key", self.id_key),
            ("separator", _unescaped(self.separator)),
            *(("skip", entry) for entry in self.skip),
        ):
            _require(
                not re.search(r"[\ud800-\udfff]", given),
                f"{name} = {given!r} is no text: the command line held bytes that are not UTF-8. "
                "Name it in UTF-8 (and a file that is not with its --encoding).",
            )
        _require(
            self.max_document_tokens == 0 or self.max_document_tokens >= LEAST_DOCUMENT_TOKENS,
            f"max_document_tokens = {self.max_document_tokens} must be 0 (off) or at least "
            f"{LEAST_DOCUMENT_TOKENS}: any single character must fit.",
        )
        _require(
            _is_encoding(self.encoding),
            f"encoding = {self.encoding!r} is no text encoding that Python knows.",
        )
        _require(
            self.newlines in ("keep", "lf"), f"newlines = {self.newlines!r} must be keep or lf."
        )
        _require(self.dedup in ("off", "exact"), f"dedup = {self.dedup!r} must be off or exact.")
        _require(
            self.document_timeout_s > 0,
            f"document_timeout_s = {self.document_timeout_s} must be above 0.",
        )

    @property
    def options(self) -> SourceOptions:
        return SourceOptions(
            text_key=self.text_key,
            id_key=self.id_key,
            max_record_bytes=self.max_record_bytes,
            encoding=codecs.lookup(self.encoding).name,
            newlines=self.newlines,
            separator=_unescaped(self.separator),
        )

    def bears(self, bad: int, *, of: int) -> bool:
        """Whether `bad` records among `of` are few enough."""
        if self.max_bad.endswith("%"):
            return bad * 100 <= float(self.max_bad[:-1]) * of
        return bad <= int(self.max_bad)
