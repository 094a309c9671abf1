"""The drawing of the rows: where documents begin and end, to the character."""

from jobs.show_rows import draw
from pipeline.layout import Boundary, Layout
from pipeline.rows import Walk
from pipeline.server import RowServer
from tests.streams import Positions


def drawn(lengths: list[int], *, rows: int, boundary: Boundary, skip: int = 0) -> list[str]:
    layout = Layout(rows=rows, segment=8, shuffle="none", boundary=boundary)
    server = RowServer(Positions(lengths), layout)
    walk = Walk(server.lengths, layout, server.initial_state())
    walk.skip(skip)
    return draw([walk.next_reading() for _ in range(3)], rows=rows, segment=8, step=skip + 2)


def test_documents_stand_where_they_are_read() -> None:
    assert drawn([11, 3, 19, 40], rows=2, boundary="pack") == [
        " step  1       2       3",
        "               ▼▼▼▼▼▼▼▼",
        "row 0  | 0═════════| 3─────────",
        "row 1  | 1═| 2─────────────────",
    ]


def test_a_document_in_progress_is_named_at_the_left_edge() -> None:
    line = drawn([30, 3, 19, 40], rows=1, boundary="pack", skip=1)[2]
    assert line == "row 0  0══════════════════════|"


def test_pads_are_dots() -> None:
    line = drawn([11, 3, 19], rows=1, boundary="pad")[2]
    assert line == "row 0  | 0═════════····| 1─····"


def test_more_rows_than_a_page_holds_are_counted() -> None:
    assert drawn([5] * 50, rows=45, boundary="pack")[-1] == "and 5 rows more"
