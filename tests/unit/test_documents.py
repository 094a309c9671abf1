"""A checkpoint of a store that was being built goes on with that store, finished, and no other."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.growing import GrowingStore
from pipeline.layout import Layout
from pipeline.publish import parts_identity
from pipeline.server import RowServer
from pipeline.store import Store
from tests.tiny_runs import tiny_plan
from trainer.documents import check_parts, open_store, parts_of
from trainer.errors import ConfigError
from trainer.plan import check_identity


def test_what_was_known_must_be_the_beginning_of_the_store(tiny_store: Path) -> None:
    store, where = Store.open(str(tiny_store)), Path("checkpoint")
    growing = GrowingStore.open(str(tiny_store))
    rows = RowServer(store, Layout(rows=2, segment=9)).initial_state()
    assert parts_of(store, rows) == {}
    count = len(store.manifest.parts)
    saved = parts_of(growing, rows)
    assert saved == {"parts": {"count": count, "sha256": parts_identity(store.manifest.parts)}}
    for known in (store, growing):
        check_parts(known, saved, where=where)
        check_parts(known, {}, where=where)  # of a finished store: its fingerprint is compared
        for wrong in ({"sha256": "f" * 64}, {"count": count + 1}):
            changed = {"parts": saved["parts"] | wrong}
            with pytest.raises(DataError, match=r"checkpoint was written when the first .* parts"):
                check_parts(known, changed, where=where)


def test_a_run_goes_on_when_its_store_is_finished_and_only_then(
    tiny_store: Path, tmp_path: Path
) -> None:
    finished = tiny_plan(tiny_store, tmp_path / "run", steps=1)
    building = replace(finished, building="plan", store_fingerprint="")
    other = replace(building, building="another")
    check_identity(building.identity(), building.identity(), where="it")
    check_identity(building.identity(), finished.identity(), where="it")
    for saved, wanted in ((finished, building), (building, other)):
        with pytest.raises(ConfigError, match=r"data\.store_fingerprint is"):
            check_identity(saved.identity(), wanted.identity(), where="it")
    renamed = replace(finished, tokenizer_sha256="other")
    with pytest.raises(ConfigError, match=r"tokenizer\.sha256 is"):
        check_identity(building.identity(), renamed.identity(), where="it")


def test_a_worker_refuses_another_store_than_the_driver_saw(
    tiny_store: Path, tmp_path: Path
) -> None:
    plan = tiny_plan(tiny_store, tmp_path / "run", steps=1)
    assert isinstance(open_store(plan), Store)
    grown = open_store(replace(plan, building="plan", store_fingerprint=""))
    assert isinstance(grown, GrowingStore)
    assert grown.whole is not None
    for wrong in ({"store_fingerprint": "f" * 64}, {"tokenizer_sha256": "f" * 64}):
        with pytest.raises(DataError, match="Workers must see the same store"):
            open_store(replace(plan, **wrong))
