"""The order and the stream of a known corpus, as numbers: they must never change in silence.

Whoever changes one of these cuts off every run begun before: docs/formats.md must change with it.
"""

import numpy as np
import pytest

from pipeline.layout import Layout
from pipeline.order import _split_mix, documents_at, round_keys
from pipeline.rows import advance
from pipeline.server import RowServer
from tests.streams import Positions

LAYOUT = Layout(rows=4, segment=8, seed=7)
SERVER = RowServer(Positions([5, 9, 0, 7, 11, 2, 30, 1, 4]), LAYOUT)
ORDERS = {  # count, epoch, seed: the documents at the first ten indices
    (10, 0, 0): [7, 4, 3, 8, 2, 0, 6, 5, 9, 1],
    (10, 1, 0): [7, 9, 4, 6, 8, 0, 3, 1, 2, 5],
    (10, 0, 1): [2, 6, 4, 9, 8, 5, 0, 7, 1, 3],
    (1000, 3, 42): [566, 539, 808, 552, 623, 287, 373, 21, 842, 882],
    (10**12, 5, 2**63 - 1): [
        *(592334151417, 998556018382, 922190320797, 938239990704, 371556822142),
        *(506919841868, 304025114863, 108330163541, 102707048614, 498421624613),
    ],
}


def test_the_hash_is_split_mix() -> None:
    # The first outputs of the generator for seed 1234567, as its reference program prints them.
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [_split_mix(1234567, number) for number in range(3)] == outputs


def test_the_keys_are_pinned() -> None:
    assert round_keys(epoch=0, seed=0) == [
        *(0x238275BC38FCBE91, 0xF89A2566B5822C54, 0x47200E1D9780FA44, 0xE710DC7A64E2470A),
        *(0xA8638DE0A181AC7F, 0x50A9C0499F748350, 0xDEA82430CEE0C93A, 0x2C4897BEBA42690D),
    ]


@pytest.mark.parametrize(("case", "expected"), ORDERS.items())
def test_the_order_is_pinned(case: tuple[int, int, int], expected: list[int]) -> None:
    count, epoch, seed = case
    found = documents_at(np.arange(10), count=count, epoch=epoch, seed=seed, shuffle="global")
    assert found.tolist() == expected


def test_the_state_is_pinned() -> None:
    state = advance(SERVER.lengths, LAYOUT, SERVER.initial_state(), 5)
    assert state.to_json() == {
        "version": 1,
        "step": 5,
        "sources": [{"epoch": 2, "next_index": 4, "tokens_dealt": 210}],
        "rows": {"doc_id": [6, 6, 4, 0], "epoch": [2, 1, 2, 2], "began": [33, 27, 34, 36]},
    }


def test_the_stream_is_pinned() -> None:
    start = SERVER.initial_state()
    later = advance(SERVER.lengths, LAYOUT, start, 5)
    assert [SERVER.digest_of_next(state) for state in (start, later)] == [
        "5a18abba9da611f5da8439f051e47d6b2b1910b2e74926c85a10ee2e94978332",
        "0bf9f16297ce96d9fc5d8f6815b42e35888bd17c9055e30280467d8f97172485",
    ]
