"""Documents of a text file with a separator: those between its places, however the file is read."""

import tempfile
from pathlib import Path
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from pipeline import overlaps, records
from pipeline.corpus import Document, Reject, SourceOptions, plan_tasks

MARKS = ["|", "<|>", "\n---\n", "\n\n", "\n\n\n", "aba", "abaab", "\n-\n", "é|", "\r\n"]


@given(
    mark=st.sampled_from(MARKS),
    pieces=st.lists(st.text(alphabet="ab\n-<>|é\r ", max_size=8), min_size=1, max_size=8),
    ended=st.booleans(),
    task_bytes=st.integers(1, 40),
    chunk=st.integers(1, 12),
    limit=st.integers(0, 60),
)
@example(
    mark="aba", pieces=["", "ba", "b", "ab", "ba"] * 4, ended=True, task_bytes=4, chunk=3, limit=0
)
@example(
    mark="\n-\n", pieces=["-\n", "-", "", "-\n-"] * 4, ended=True, task_bytes=5, chunk=2, limit=0
)
@example(mark="\n\n", pieces=["a", "\n", "b"], ended=True, task_bytes=3, chunk=1, limit=0)
@example(mark="<|>", pieces=["a" * 30, "b"], ended=False, task_bytes=5, chunk=3, limit=100)
@example(mark="<|>", pieces=["ab"] * 9, ended=False, task_bytes=7, chunk=4, limit=100)
def test_each_text_between_two_separators_is_a_document_once(
    mark: str, pieces: list[str], ended: bool, task_bytes: int, chunk: int, limit: int
) -> None:
    data = mark.join(pieces) + mark * ended
    options = SourceOptions(separator=mark)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(records, "CHUNK", chunk),
        patch.object(overlaps, "CHUNK", chunk),
    ):
        path = Path(folder, "a.txt")
        path.write_bytes(data.encode())
        found = []
        raw = data.encode()
        tasks = plan_tasks([str(path)], task_bytes=task_bytes, options=options).tasks
        assert len(tasks) == max(-(-len(raw) // task_bytes), 1)  # cut, whatever the mark
        for task in tasks:
            items = list(records.read_task(task, held=records.hold(task, limit=limit)))
            extent = task.extents[0]
            assert all(extent.start <= item.record < extent.end for item in items)
            found += items
    wanted = data.split(mark)
    wanted = wanted[:-1] if not wanted[-1] else wanted
    assert [item.text for item in found if isinstance(item, Document)] == wanted
    assert all(
        raw[item.record :].startswith(text.encode())
        for item, text in zip(found, wanted, strict=True)
    )
    assert len({item.uid for item in found if isinstance(item, Document)}) == len(wanted)


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    most=st.integers(1, 12),
    chunk=st.integers(1, 9),
)
def test_a_text_that_is_too_long_costs_its_neighbours_nothing(
    sizes: list[int], most: int, chunk: int
) -> None:
    texts = [letter * size for letter, size in zip("abcdef", sizes, strict=False)]
    data = "<|>".join([*texts, "end"])
    options = SourceOptions(separator="<|>", max_record_bytes=most)
    with tempfile.TemporaryDirectory() as folder, patch.object(records, "CHUNK", chunk):
        path = Path(folder, "a.txt")
        path.write_text(data)
        (task,) = plan_tasks([str(path)], task_bytes=1_000, options=options).tasks
        found = list(records.read_task(task))
    begins = [len("<|>".join(["", *texts[:i]])) if i else 0 for i in range(len(texts) + 1)]
    for item, text, place in zip(found, [*texts, "end"], begins, strict=True):
        assert item.record == place
        if len(text) > most:
            assert isinstance(item, Reject)
            assert item.reason == "too large"
        else:
            assert isinstance(item, Document)
            assert item.text == text
