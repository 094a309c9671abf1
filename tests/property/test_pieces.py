"""A text that is cut into documents loses nothing, and no piece is too long."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.pieces import cut_text
from tests.property.test_text_survives import letters, texts, tokenizer

long_texts = st.lists(
    texts | st.text(letters, max_size=60) | st.sampled_from(["\n", "word " * 30, "x" * 90, "\r\n"]),
    max_size=12,
).map("".join)
kinds = pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "byte"])


@kinds
@given(text=long_texts, most=st.integers(4, 40))
def test_pieces_are_bounded_and_joined_they_are_the_text(kind: str, text: str, most: int) -> None:
    model = tokenizer(kind)
    pieces = cut_text(text.encode(), model, max_tokens=most)
    assert "".join(data.decode() for data, _ in pieces) == text  # decodes: no character is cut
    for data, ids in pieces:
        np.testing.assert_array_equal(ids, model.encode(data.decode()))
        assert len(ids) <= most
    assert all(data for data, _ in pieces) or pieces == [(b"", pieces[0][1])]


@kinds
@given(text=long_texts, most=st.integers(4, 40))
def test_only_a_line_that_is_too_long_is_cut_inside(kind: str, text: str, most: int) -> None:
    model = tokenizer(kind)
    data = text.encode()
    ends = {match.end() for match in re.finditer(rb"\n", data)}
    place = 0
    for piece, _ in cut_text(data, model, max_tokens=most)[:-1]:
        place += len(piece)
        if place not in ends:
            begins = data.rfind(b"\n", 0, place) + 1
            line = data[begins : data.find(b"\n", place) + 1 or None]
            assert len(model.encode_utf8(line)) > most
            assert data[place - 1 : place + 1] != b"\r\n" or most < 6


@given(text=long_texts, most=st.integers(4, 40))
def test_a_piece_takes_as_many_lines_as_it_can(text: str, most: int) -> None:
    pieces = [data for data, _ in cut_text(text.encode(), tokenizer("byte"), max_tokens=most)]
    for piece, following in itertools.pairwise(pieces):
        if piece.endswith(b"\n"):
            assert len(piece) + len(following.split(b"\n")[0]) + 1 > most


@kinds
@given(text=long_texts)
def test_a_text_within_the_bound_is_left_alone(kind: str, text: str) -> None:
    model = tokenizer(kind)
    whole = len(model.encode(text))
    for most in (0, whole, whole + 1):
        assert [data for data, _ in cut_text(text.encode(), model, max_tokens=most)] == [
            text.encode()
        ]


def test_a_character_that_fits_nowhere_is_named() -> None:
    with pytest.raises(DataError, match=r"alone has 4 tokens, .* allows 3"):
        cut_text("ab \U0001f469".encode(), tokenizer("byte"), max_tokens=3)


class Crowded:
    """Lines cost more tokens together than each alone, as a unigram model may decide."""

    def encode_utf8(self, data: bytes) -> np.ndarray:
        return np.zeros(len(data) + data.count(b"\n") ** 2, np.int32)


@given(lines=st.lists(st.integers(0, 12), max_size=20), most=st.integers(4, 40))
def test_a_piece_is_counted_as_it_will_be_stored_and_not_by_its_lines(
    lines: list[int], most: int
) -> None:
    data = b"".join(b"x" * length + b"\n" for length in lines)
    model = Crowded()
    pieces = cut_text(data, model, max_tokens=most)  # pyright: ignore[reportArgumentType]
    assert b"".join(piece for piece, _ in pieces) == data
    assert all(len(model.encode_utf8(piece)) <= most for piece, _ in pieces)
