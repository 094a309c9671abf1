"""Block order, mixtures, pads and other rows of a known corpus, as numbers that never change.

Like test_stream_is_pinned.py: docs/formats.md must change with any of these.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.layout import Layout
from pipeline.order import documents_at, seed_of_source
from pipeline.reshard import reshard
from pipeline.rows import advance
from pipeline.server import RowServer
from tests.streams import Positions

CORPUS = [5, 9, 0, 7, 11, 2, 30, 1, 4]
LAYOUT = Layout(rows=4, segment=8, seed=7)
PADDED = replace(LAYOUT, boundary="pad")
ORDERS = {  # count, epoch, seed, block: the documents at the first ten indices
    (10, 0, 0, 2): [6, 8, 9, 1, 4, 0, 3, 5, 2, 7],
    (40, 1, 0, 2): [16, 25, 17, 26, 22, 14, 39, 23, 28, 1],
    (10**12, 5, 2**63 - 1, 1024): [
        *(477488608517, 912642742737, 587195342720, 912642742416, 50869948025),
        *(155237772627, 997205771531, 394137898363, 997205771635, 264010032921),
    ],
}


def source(epoch: int, next_index: int, tokens_dealt: int) -> dict[str, int]:
    return {"epoch": epoch, "next_index": next_index, "tokens_dealt": tokens_dealt}


@pytest.mark.parametrize(("case", "expected"), ORDERS.items())
def test_the_order_of_blocks_is_pinned(
    case: tuple[int, int, int, int], expected: list[int]
) -> None:
    count, epoch, seed, block = case
    found = documents_at(
        np.arange(10), count=count, epoch=epoch, seed=seed, shuffle="block", block=block
    )
    assert found.tolist() == expected


def test_the_seeds_of_sources_are_pinned() -> None:
    assert [seed_of_source(7, k) for k in range(3)] == [7, 309689372594955804, 16616101746815609346]


STATES: dict[str, tuple[Positions, Layout, list[dict[str, int]], dict[str, list[int]], str]] = {
    "mixture": (
        Positions(CORPUS, mixture=[(5, 3), (4, 1)]),
        LAYOUT,
        [source(3, 2, 127), source(1, 1, 43)],
        {"doc_id": [1, 6, 1, 7], "epoch": [2, 0, 3, 1], "began": [30, 9, 39, 39]},
        "1436670a602501670a36b01cb1574fa9f4ba123af9fdc84b133ceb9289c3ae6d",
    ),
    "pad": (
        Positions(CORPUS),
        PADDED,
        [source(1, 5, 168)],
        {"doc_id": [4, 8, 6, 3], "epoch": [1, 1, 0, 1], "began": [32, 32, 8, 32]},
        "383f0fb40e0720906b6d7cb59deed4f1093eb1bcf56ba471f867c129a16b8b92",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_state_and_stream_are_pinned(name: str) -> None:
    documents, layout, sources, rows, sha256 = STATES[name]
    server = RowServer(documents, layout)
    state = advance(server.lengths, layout, server.initial_state(), 5)
    assert state.to_json() == {"version": 1, "step": 5, "sources": sources, "rows": rows}
    assert server.digest_of_next(state) == sha256


def test_other_rows_are_pinned() -> None:
    server, new = RowServer(Positions(CORPUS), LAYOUT), replace(LAYOUT, rows=2, segment=10)
    state = advance(server.lengths, LAYOUT, server.initial_state(), 5)
    moved = reshard(server.lengths, state, old=LAYOUT, new=new).state
    told: dict[str, Any] = {
        "version": 1,
        "step": 5,
        "sources": [source(2, 4, 210)],
        "rows": {"doc_id": [-1, -1], "epoch": [0, 0], "began": [0, 0]},
        "restart": {
            "step": 5,
            "tokens_dealt": 130,
            "pending": [[6, 2], [6, 1], [4, 2], [0, 2]],
        },
    }
    assert moved.to_json() == told
    later = advance(server.lengths, new, moved, 1)
    told["step"], told["restart"]["pending"] = 6, [[4, 2], [0, 2]]
    told["rows"] = {"doc_id": [6, 6], "epoch": [2, 1], "began": [0, 0]}
    assert later.to_json() == told
    assert RowServer(Positions(CORPUS), new).digest_of_next(later) == (
        "162c235bfafe6cf09b082ec1e2df2e0fe131b7790a5a9f944ef229dbdce5a3da"
    )
