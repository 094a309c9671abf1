"""From a store that is still being built come the steps of the finished one, and no other."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.batch import digest
from pipeline.build import build_store
from pipeline.client import RowClient
from pipeline.errors import DataError
from pipeline.growing import LOOK_S, GrowingStore
from pipeline.growing_server import GrowingServer
from pipeline.layout import Layout
from pipeline.manifest import BUILDING
from pipeline.publish import Publisher, read_head
from pipeline.rows_state import RowsState
from pipeline.server import NotBuiltYetError, ReadAhead, RowServer
from pipeline.settings import BuildSettings
from pipeline.store import Store
from pipeline.tokenizer import train_tokenizer
from trainer.documents import parts_of

LAYOUT = Layout(rows=3, segment=40, shuffle="none", seed=1)
SETTINGS = BuildSettings(task_bytes=200, held_out=0.2)
STEPS = 120  # more than an epoch


class Clock:
    """Each look is long after the last."""

    now = 0.0

    def __call__(self) -> float:
        self.now += LOOK_S
        return self.now


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.growing.LONGEST_S", 1e9)  # by that clock


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished store `whole`, and `said`: all that its build said on the way."""
    home = tmp_path_factory.mktemp("growing")
    lines = [json.dumps({"text": f"{i} " * (i * 7 % 23 + 1)}) for i in range(60)]
    (home / "a.jsonl").write_text("\n".join(lines))
    (home / "byte").write_bytes(train_tokenizer([], vocab_size=0, model_type="byte"))

    class Keeping(Publisher):
        def committed(self, task: int, record: object) -> None:
            super().committed(task, record)  # type: ignore[arg-type]
            shutil.copytree(home / "whole" / BUILDING, home / "said", dirs_exist_ok=True)

    build_store(
        [str(home / "a.jsonl")],
        tokenizer=str(home / "byte"),
        out=str(home / "whole"),
        settings=SETTINGS,
        publisher=Keeping(str(home / "whole")),
    )
    assert not (home / "whole" / BUILDING).exists()
    return home


class Building:
    """A copy of the store, brought to light piece by piece."""

    def __init__(self, home: Path) -> None:
        self.home, self.at = home, home / "growing"
        shutil.rmtree(self.at, ignore_errors=True)
        (self.at / BUILDING).mkdir(parents=True)
        shutil.copytree(home / "whole/parts", self.at / "parts", copy_function=os.link)
        self.show("plan.json")
        self.tasks = sorted(p.name for p in (home / "said").glob("0*.json"))
        self.seen: set[str] = set()

    def show(self, name: str) -> None:
        shutil.copy(self.home / "said" / name, self.at / BUILDING / name)

    def commit(self, task: int) -> None:
        self.show(self.tasks[task])
        self.seen.add(self.tasks[task])

    def finish(self) -> None:
        for name in ("index.arrow", "tokenizer.model", "manifest.json"):
            shutil.copy(self.home / "whole" / name, self.at / name)
        shutil.rmtree(self.at / BUILDING)

    def known_parts(self) -> int:
        return next((n for n, t in enumerate(self.tasks) if t not in self.seen), len(self.tasks))


def whole_stream(home: Path) -> list[tuple[str, RowsState]]:
    server = RowServer(Store.open(str(home / "whole")), LAYOUT)
    state, stream = server.initial_state(), []
    for _ in range(STEPS):
        block = server.read(state, 1, (0, LAYOUT.rows))
        state = block.after
        stream.append((digest(block.batch(0)), state))
    return stream


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_way_of_growing_gives_the_steps_of_the_whole_as_soon_as_they_are_known(
    home: Path, data: st.DataObject
) -> None:
    stream, building = whole_stream(home), Building(home)
    whole = Store.open(str(home / "whole"))
    assert len(building.tasks) > 10
    assert stream[-1][1].sources[0].epoch > 0
    order = data.draw(st.permutations(range(len(building.tasks))), label="order")
    block = data.draw(st.integers(1, 20), label="block")
    head = read_head(str(building.at))
    assert head is not None
    store = GrowingStore(str(building.at), head, clock=Clock())
    server = GrowingServer(store, LAYOUT)
    client = RowClient(
        server, state=server.initial_state(), rows=(0, 3), warn=pytest.fail, block=block
    )
    step = 0
    for at in [*order, None]:
        if at is None:
            building.finish()
        else:
            building.commit(at)
        documents = sum(p.documents for p in whole.manifest.parts[: building.known_parts()])
        train = int((whole.doc_ids("train") < documents).sum())
        for _ in range(data.draw(st.integers(0, 6), label="steps") if at is not None else STEPS):
            if step == STEPS:
                break
            dealt = stream[step][1].sources[0]
            known = (dealt.epoch == 0 and dealt.next_index < train >= LAYOUT.rows) or at is None
            assert client.ready() == known
            assert (server.digest_of_next(client.state) == stream[step][0]) == known
            if not known:
                with pytest.raises(NotBuiltYetError):
                    client.next()
                break
            batch, state = client.next()
            assert (digest(batch), state) == stream[step]
            step += 1
    assert step == STEPS
    assert store.whole is not None
    assert store.identity(store.num_parts) == finished_identity(str(building.at))


def finished_identity(store: str) -> str:
    opened = GrowingStore.open(store)
    return opened.identity(opened.num_parts)


def test_an_actor_that_read_ahead_too_early_finds_what_is_built_since(home: Path) -> None:
    building = Building(home)
    head = read_head(str(building.at))
    assert head is not None
    server = GrowingServer(GrowingStore(str(building.at), head, clock=Clock()), LAYOUT)
    ahead = ReadAhead(server)
    state = server.initial_state()
    with pytest.raises(NotBuiltYetError):
        ahead.read(state, 16, (0, 3))
    for task in range(4):
        building.commit(task)
    block = ahead.read(state, 16, (0, 3))
    while ahead._ready and ahead._ready[1].exception() is None:  # until it has read too far ahead
        block = ahead.read(block.after, 16, (0, 3))
    for task in range(4, len(building.tasks)):
        building.commit(task)
    after = ahead.read(block.after, 16, (0, 3))
    assert after.step == block.after.step > 0
    assert digest(after.batch(0)) == whole_stream(home)[after.step][0]
    ahead.close()


def test_a_store_finished_as_another_one_is_refused(home: Path) -> None:
    building = Building(home)
    store = GrowingStore.open(str(building.at))
    building.commit(0)
    assert store.grow()
    said = json.loads((home / "said" / building.tasks[1]).read_text())
    (building.at / BUILDING / building.tasks[1]).write_text(
        json.dumps(said | {"part": said["part"] | {"tokens": 1}})
    )
    store._looked_at = -1.0
    assert store.grow()
    building.finish()
    store._looked_at = -1.0
    with pytest.raises(DataError, match="first 2 parts differ"):
        store.grow()


def test_what_another_process_has_read_is_in_the_checkpoint_however_short_ago_we_looked(
    home: Path,
) -> None:
    building = Building(home)
    ours = GrowingStore.open(str(building.at))
    building.commit(0)
    assert ours.grow()
    for task in range(1, len(building.tasks)):
        building.commit(task)
    theirs = GrowingServer(GrowingStore.open(str(building.at)), LAYOUT)  # the row server's actor
    state = theirs.initial_state()
    while theirs.ready(state):
        state = theirs.read(state, 1, (0, LAYOUT.rows)).after
    assert int(state.doc_id.max()) >= ours.documents
    ours._looked_at = ours._clock()  # a moment ago
    saved = parts_of(ours, state)["parts"]
    documents = [part.documents for part in Store.open(str(home / "whole")).manifest.parts]
    assert sum(documents[: saved["count"]]) > int(state.doc_id.max())
    assert saved["sha256"] == ours.identity(saved["count"])
    lagging = replace(state, doc_id=state.doc_id + 1000)
    with pytest.raises(OSError, match="as another process sees it"):  # the saver tries it again
        parts_of(ours, lagging)


def test_a_part_is_opened_when_a_document_of_it_is_read_and_not_before(home: Path) -> None:
    building = Building(home)
    store = GrowingStore.open(str(building.at))
    for task in range(10):
        building.commit(task)
    assert store.grow()
    assert store.documents > 3
    assert not store._parts.open
    store.read(0)
    assert len(store._parts.open) == 1
    key = store._entries[5].key
    part = building.at / "parts" / f"{key}.arrow"
    data = part.read_bytes()
    part.unlink()  # a link to that of the whole store
    part.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    with pytest.raises(DataError, match=r"wrong sha256|no whole Arrow file"):
        store.read(store._bases[5])


def test_a_look_at_very_many_parts_is_cut_short_and_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.growing.LONGEST_S", 0.0)
    building = Building(home)
    for task in range(6):
        building.commit(task)
    store = GrowingStore.open(str(building.at))
    seen: list[int] = []
    while store.grow():
        seen.append(store.num_parts)
    assert seen == [1, 2, 3, 4, 5, 6]


def test_a_damaged_word_of_a_part_is_told(home: Path) -> None:
    building = Building(home)
    building.commit(0)
    said = building.at / BUILDING / building.tasks[0]
    for damaged in ("{", said.read_text().replace('"sha256": "', '"sha256": "0')):
        said.write_text(damaged)
        with pytest.raises(DataError, match=r"00000000\.json is damaged"):
            GrowingStore.open(str(building.at)).grow()


def test_nothing_that_is_built_is_no_growing_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.growing.SILENCE_S", 0.1)
    with pytest.raises(DataError, match="nothing is being built there"):
        GrowingStore.open(str(tmp_path))
