"""Text -> token ids and back, nothing lost: decode(encode(text)) == text."""

import hashlib
import io
import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import sentencepiece

from pipeline.errors import DataError
from pipeline.files import local_path, read_bytes
from pipeline.sample import PIECE_CHARS, sample_pieces
from pipeline.settings import TokenizerSettings

Ids = npt.NDArray[np.int32]

BLANK = "\u2581"  # sentencepiece writes a blank so, and would read this letter as one
_BLANK_UTF8 = BLANK.encode()
_BYTE_FORMAT = {"format": "longrow-bytes", "version": 1}
_NUM_THREADS = 8  # part of the result: the sums of unigram's training depend on it
_LOSSLESS: dict[str, Any] = {
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
    "allow_whitespace_only_pieces": True,
    "split_digits": True,
    "user_defined_symbols": ["\n", "\t", "\r"],
    "character_coverage": 0.9995,  # rarer letters are written in bytes
    "max_sentence_length": 4 * PIECE_CHARS,
    "minloglevel": 2,
}


class Tokenizer:
    """A sentencepiece model, or plain bytes; the file says which.

    Attributes:
        vocab_size: Ids in all, begin and end of document among them.
        bos: Id that stands before a document.
        eod: Id that ends a document.
        sha256: Of the file.
        model_bytes: The file.
    """

    def __init__(self, model: bytes, *, name: str = "the tokenizer") -> None:
        self.model_bytes = model
        self.sha256 = hashlib.sha256(model).hexdigest()
        self._pieces = None if _is_bytes(model) else _processor(model, name)
        self._blank: Ids | None = None  # the letter BLANK, spelled in bytes
        self._as_array: dict[str, Any] = {"out_type": "numpy"}
        if self._pieces is None:
            self.bos, self.eod, self.vocab_size = 256, 257, 258
            return
        try:
            self._pieces.encode("", **self._as_array)
        except (
            RuntimeError,
            ValueError,
        ):  # sentencepiece below 0.2.2 knows lists only: 1.2x slower
            self._as_array = {}
        free = self._pieces.get_piece_size()
        self.bos = self._pieces.bos_id()
        if self.bos < 0:
            self.bos, free = free, free + 1
        self.eod = self._pieces.eos_id()
        if self.eod < 0:
            self.eod, free = free, free + 1
        self.vocab_size = free
        spelled = [self._pieces.piece_to_id(f"<0x{byte:02X}>") for byte in _BLANK_UTF8]
        if all(self._pieces.is_byte(piece) for piece in spelled):
            self._blank = np.array(spelled, dtype=np.int32)

    @classmethod
    def load(cls, url: str) -> "Tokenizer":
        """Read a tokenizer file.

        Raises:
            DataError: The file is missing or no tokenizer.
        """
        path = local_path(url)
        if path is not None and (path.is_char_device() or path.is_block_device()):
            raise DataError(f"{url} is a device and no file. Give the path of a tokenizer file.")
        try:
            return cls(read_bytes(url), name=url)
        except FileNotFoundError as error:
            raise DataError(
                f"No tokenizer at {url}. Train one (`longrow tokenizer CORPUS --out {url}`) or "
                "give the path of a sentencepiece model."
            ) from error

    @classmethod
    def from_bytes(cls, model: bytes) -> "Tokenizer":
        return cls(model)

    def encode(self, text: str) -> Ids:
        """Ids of a whole document, without begin and end.

        Never give it pieces of a document: unigram's ids depend on where a text is cut.

        Returns:
            (n,)

        Raises:
            DataError: The text holds half a surrogate pair, which no UTF-8 can say.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"The text holds a lone surrogate at character {error.start}, which UTF-8 cannot "
                "write. Repair the record or let it be rejected."
            ) from error
        return self.encode_utf8(data)

    def encode_utf8(self, data: bytes) -> Ids:
        """`encode` for a text that is UTF-8 already: (n,)."""
        pieces = self._pieces
        if pieces is None:
            return np.frombuffer(data, dtype=np.uint8).astype(np.int32)
        if self._blank is None or not _has_blank(data):
            return np.asarray(pieces.encode(data, **self._as_array), dtype=np.int32)
        parts: list[Ids] = []
        for part in data.split(_BLANK_UTF8):
            parts += [np.asarray(pieces.encode(part), dtype=np.int32), self._blank]
        return np.concatenate(parts[:-1])

    def encode_all(self, texts: Sequence[bytes]) -> list[Ids]:
        """`encode_utf8` of each, in one call of the library: the ids are the same."""
        pieces = self._pieces
        if pieces is None or not self._as_array:
            return [self.encode_utf8(text) for text in texts]
        odd = {i for i, text in enumerate(texts) if self._blank is not None and _has_blank(text)}
        plain = [text for i, text in enumerate(texts) if i not in odd] if odd else list(texts)
        found = pieces.encode(plain, **self._one_thread, **self._as_array) if plain else []
        if not odd:
            return found
        left = iter(found)
        return [self.encode_utf8(text) if i in odd else next(left) for i, text in enumerate(texts)]

    def count_bytes(self, ids: Ids) -> int:
        """How many of the ids spell a letter in bytes."""
        if self._pieces is None:
            return len(ids)
        return int(self._byte_ids[ids].sum())

    def count_unknown(self, ids: Ids) -> int:
        """How many of the ids stand for an unknown letter, which is lost."""
        return 0 if self._pieces is None else int((ids == self._pieces.unk_id()).sum())

    @cached_property
    def _one_thread(self) -> dict[str, Any]:
        """One thread for all batches: the library would start and end one for each."""
        pool = getattr(sentencepiece, "ThreadPool", None)
        return {"thread_pool": pool(1)} if pool else {"num_threads": 1}

    @cached_property
    def _byte_ids(self) -> npt.NDArray[np.bool_]:
        pieces = self._pieces
        size = pieces.get_piece_size() if pieces else 0
        return np.array([bool(pieces and pieces.is_byte(i)) for i in range(size)], np.bool_)

    def bare_encoder(self) -> Callable[[bytes], Any]:
        """The library's own encoder and nothing around it, to measure against."""
        if self._pieces is None:
            return lambda data: np.frombuffer(data, dtype=np.uint8).astype(np.int32)
        return partial(self._pieces.encode, **self._as_array)

    def decode(self, ids: Sequence[int] | npt.NDArray[Any]) -> str:
        """Text of ids; begin and end say nothing."""
        array = np.asarray(ids, dtype=np.int64)
        array = array[(array != self.bos) & (array != self.eod)]
        if self._pieces is None:
            return array.astype(np.uint8).tobytes().decode(errors="replace")
        return self._pieces.decode(array.tolist())


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    model_type: str = "unigram",
    seed: int = 0,
    sample_bytes: int = 10_000_000,
) -> bytes:
    """Train on a sample of whole documents and give the file's bytes: the same for the same texts.

    Raises:
        DataError: The texts are too few or too plain for the vocabulary.
    """
    if model_type == "byte":
        return json.dumps(_BYTE_FORMAT).encode()
    pieces = sample_pieces(texts, sample_bytes=sample_bytes, seed=seed)
    if not pieces:
        raise DataError("The corpus holds no text to train a tokenizer on. Check --text-key.")
    out = io.BytesIO()
    try:
        _interruptibly(
            lambda: sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(pieces),
                model_writer=out,
                vocab_size=vocab_size,
                model_type=model_type,
                num_threads=_NUM_THREADS,
                **_LOSSLESS,
            )
        )
    except RuntimeError as error:
        raise DataError(_in_words(str(error), vocab_size, pieces)) from error
    return out.getvalue()


def _interruptibly(act: Callable[[], None]) -> None:
    """Do `act`, which stays in C for minutes, so that a signal to stop is heard meanwhile.

    Python hands signals to its main thread, and not before that is back from C.
    """
    errors: list[Exception] = []

    def work() -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - carried to the calling thread, raised there
            errors.append(error)

    thread = threading.Thread(target=work, name="tokenizer", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if errors:
        raise errors[0]


def train_from_settings(texts: Iterable[str], settings: TokenizerSettings) -> bytes:
    """`train_tokenizer` as a run's configuration says."""
    return train_tokenizer(
        texts,
        vocab_size=settings.vocab_size,
        model_type=settings.model_type,
        seed=settings.seed,
        sample_bytes=settings.sample_bytes,
    )


def _has_blank(data: bytes) -> bool:
    """Whether the letter BLANK is in a text in UTF-8; its second byte is in few texts."""
    return _BLANK_UTF8[1] in data and _BLANK_UTF8 in data


def _in_words(message: str, vocab_size: int, pieces: list[str]) -> str:
    size = sum(len(piece.encode()) for piece in pieces)
    least = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    most = re.search(r"value <= (\d+)", message)
    if least:
        return (
            f"A vocabulary of {vocab_size:,} is too small for the letters of this corpus: "
            f"ask for at least {int(least[1]):,}."
        )
    if most:
        return (
            f"The corpus is too small for a vocabulary of {vocab_size:,}: {size:,} bytes of text "
            f"give at most {int(most[1]):,}. Ask for fewer, or give more text."
        )
    return (
        f"sentencepiece could not train {vocab_size:,} pieces on {size:,} bytes of text: "
        f"{message}. Give more text or ask for fewer pieces."
    )


def _is_bytes(model: bytes) -> bool:
    if not model.startswith(b"{"):
        return False
    try:
        return json.loads(model) == _BYTE_FORMAT
    except (ValueError, RecursionError):
        return False


def _processor(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    if not model:  # the library would take it for "no model yet"
        raise DataError(
            f"{name} is empty: its writing was cut short. Train one with `longrow tokenizer`."
        )
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise DataError(
            f"{name} is no sentencepiece model ({len(model):,} bytes: {error}). "
            "Give the .model file, or train one with `longrow tokenizer`."
        ) from error
