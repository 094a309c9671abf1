"""Rows that cannot be are refused, with what could be."""

import pytest

from pipeline.errors import DataError
from pipeline.layout import Layout, RowsError, check_layout, check_shares, rows_of_rank


@pytest.mark.parametrize(
    ("setting", "value"),
    [("rows", 0), ("segment", 0), ("seed", -1), ("seed", 2**63), ("shuffle", "some")],
)
def test_a_setting_out_of_range_is_named(setting: str, value: object) -> None:
    with pytest.raises(RowsError, match=f"rows.{setting} = "):
        Layout(**{setting: value})  # pyright: ignore[reportArgumentType]


def test_rows_that_cannot_be_shared_out_are_refused_with_the_choices() -> None:
    with pytest.raises(RowsError) as caught:
        check_shares(12, world_size=4, accumulation=2)
    assert "Set rows.rows to 8 or 16" in str(caught.value)
    assert "1, 2, 3, 4, 6, 12." in str(caught.value)
    with pytest.raises(RowsError, match=r"Set rows\.rows to 16, or"):
        check_shares(12, world_size=16)
    check_shares(12, world_size=2, accumulation=3)


def test_no_workers_or_no_pieces_are_refused() -> None:
    for world_size, accumulation in ((0, 1), (1, 0)):
        with pytest.raises(RowsError, match="must be above 0"):
            check_shares(12, world_size=world_size, accumulation=accumulation)


def test_ranks_own_rows_side_by_side() -> None:
    assert [rows_of_rank(12, rank=rank, world_size=3) for rank in range(3)] == [
        (0, 4),
        (4, 8),
        (8, 12),
    ]
    with pytest.raises(RowsError, match="Rank 3"):
        rows_of_rank(12, rank=3, world_size=3)


def test_too_few_documents_are_refused_before_the_shares_are_looked_at() -> None:
    layout = Layout(rows=12)
    check_layout(layout, documents=12, world_size=4, accumulation=3)
    with pytest.raises(DataError, match="holds 11 training documents"):
        check_layout(layout, documents=11, world_size=5)
    with pytest.raises(DataError, match="no training document"):
        check_layout(layout, documents=0, world_size=1)
    with pytest.raises(RowsError, match="5 workers"):
        check_layout(layout, documents=12, world_size=5)
