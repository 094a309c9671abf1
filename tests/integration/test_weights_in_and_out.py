"""Published weights come in and go out as they were; what could run code stays outside."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.memory import empty_memory
from model.reference import Dialect, config_from_reference, config_to_reference, to_reference
from model.transformer_xl import TransformerXL
from model.weights import load_weights, save_tensors, save_weights, set_weights
from tests.command import code_of
from tests.models import small_model

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
CASES = ["a_plain", "b_longmem", "e_prelnorm", "g_tied_r", "g_untied_r"]
CLUSTERS: dict[str, Any] = {
    "cutoffs": (5, 12, 18),
    "div_val": 2,
    "tie_projections": (False, True, True, True),
    "untie_r": True,
}


@pytest.fixture(autouse=True)
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_equal_models(one: TransformerXL, other: TransformerXL) -> None:
    state, again = one.state_dict(), other.state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(state[name], again[name]) for name in state)


@pytest.mark.parametrize("case", CASES)
def test_an_imported_model_gives_the_numbers_of_the_one_that_was_published(
    case: str, box: Path
) -> None:
    path = ORACLE / case
    words = (str(path.with_suffix(".npz")), str(path.with_suffix(".json")))
    assert code_of("import-weights", *words, "got") == 0
    model = load_weights(box / "got")
    with np.load(path.with_suffix(".npz")) as arrays:
        tokens, targets = (torch.from_numpy(arrays[f"seg0/{name}"]) for name in ("input", "target"))
        wanted = torch.from_numpy(arrays["seg0/nll_f64"])
    offset = torch.arange(tokens.shape[1]).expand(tokens.shape)
    with torch.no_grad():
        hidden, _ = model(tokens, offset, empty_memory(model.config, len(tokens)))
        found = model.nll(hidden, targets)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("names", ["original", "huggingface"])
@pytest.mark.parametrize("changes", [{}, {"tie_weights": False}, CLUSTERS])
def test_what_is_exported_by_published_names_is_imported_as_it_was(
    names: str, changes: dict[str, Any], box: Path
) -> None:
    model = small_model(dtype=torch.float32, final_norm=False, **changes)
    save_weights(model, box / "ours")
    assert code_of("export", "ours", "theirs", "--names", names) == 0
    assert sorted(file.name for file in (box / "theirs").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    words = ("import-weights", "theirs/model.safetensors", "theirs/config.json", "back")
    assert code_of(*words) == 0
    assert_equal_models(load_weights(box / "back"), model)
    assert code_of("export", "back", "again") == 0
    assert_equal_models(load_weights(box / "again"), model)


def test_the_two_orders_of_clusters_are_told_apart(box: Path) -> None:
    model = small_model(dtype=torch.float32, final_norm=False, **CLUSTERS)
    both: tuple[Dialect, ...] = ("original", "huggingface")
    for dialect in both:
        named = to_reference(model.state_dict(), model.config, dialect=dialect)
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in named.items()}
        np.savez(box / f"{dialect}.npz", **arrays)
        told = config_to_reference(model.config, dialect=dialect)
        (box / f"{dialect}.json").write_text(json.dumps(told))
        assert code_of("import-weights", f"{dialect}.npz", f"{dialect}.json", dialect) == 0
        assert_equal_models(load_weights(box / dialect), model)
    # names without the prefix, in the other order: only a person can tell
    words = ("import-weights", "original.npz", "original.json", "flipped")
    assert code_of(*words, "--names", "huggingface") == 0
    flipped, right = load_weights(box / "flipped").softmax, model.softmax
    assert flipped.cluster_table is not None
    assert right.cluster_table is not None
    assert torch.equal(flipped.cluster_table, right.cluster_table.flip(0))


def test_a_published_config_comes_back() -> None:
    for changes in ({}, {"clamp_len": 4, "same_length": True}, CLUSTERS):
        model = small_model(dtype=torch.float32, final_norm=False, embed_width=8, **changes)
        both: tuple[Dialect, ...] = ("original", "huggingface")
        for dialect in both:
            told = json.loads(json.dumps(config_to_reference(model.config, dialect=dialect)))
            assert config_from_reference(told) == model.config
            again = TransformerXL(config_from_reference(told))
            set_weights(again, model.state_dict())


def _bad_files(box: Path) -> None:
    """Weights that cannot be taken, beside their config."""
    model = small_model(dtype=torch.float32, final_norm=False)
    named = to_reference(model.state_dict(), model.config)
    (box / "c.json").write_text(json.dumps(config_to_reference(model.config)))
    save_tensors(named, box / "whole.safetensors")
    torch.save(named, box / "zipped.pt")
    torch.save(named, box / "old.bin", _use_new_zipfile_serialization=False)
    (box / "plain.pkl").write_bytes(pickle.dumps({"a": 1}))
    np.savez(box / "objects.npz", a=np.array([{"run": "me"}], dtype=object))
    np.savez(box / "integers.npz", a=np.arange(3))
    torn = (box / "whole.safetensors").read_bytes()
    (box / "torn.safetensors").write_bytes(torn[: len(torn) // 2])
    np.savez(box / "some.npz", r_w_bias=np.ones((2, 5), np.float32))
    torn = (box / "some.npz").read_bytes()
    (box / "torn.npz").write_bytes(torn[: len(torn) // 2])
    (box / "broken.json").write_text("{")
    (box / "list.json").write_text("[1]")
    (box / "poor.json").write_text('{"n_token": 5}')
    (box / "words.json").write_text((box / "c.json").read_text().replace("23", '"23"'))
    save_weights(small_model(dtype=torch.float32, pre_norm=True), box / "normed")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("import-weights zipped.pt c.json got", "holds a pickle"),
        ("import-weights old.bin c.json got", "holds a pickle"),
        ("import-weights plain.pkl c.json got", "holds a pickle"),
        ("import-weights objects.npz c.json got", "holds a pickle"),
        ("import-weights integers.npz c.json got", "int64"),
        ("import-weights torn.safetensors c.json got", "not a whole safetensors file"),
        ("import-weights torn.npz c.json got", "copy it again"),
        ("import-weights some.npz c.json got", "missing"),
        ("import-weights c.json c.json got", "not a whole safetensors file"),
        ("import-weights nowhere c.json got", "nowhere is no file"),
        ("import-weights whole.safetensors nowhere got", "nowhere is no file"),
        ("import-weights whole.safetensors broken.json got", "not JSON"),
        ("import-weights whole.safetensors list.json got", "wanted is an object"),
        ("import-weights whole.safetensors poor.json got", "n_layer"),
        ("import-weights whole.safetensors words.json got", "wrong type"),
        ("import-weights whole.safetensors c.json normed", "there already"),
        ("import-weights whole.safetensors c.json c.json/got", "is a file"),
        ("export normed got --names original", "final_norm"),
        ("export normed got --names huggingface", "final_norm"),
        ("export normed c.json", "there already"),
        ("export nobody got", "nobody"),
        ("evaluate normed", "--store"),
        ("generate normed", "--store"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_a_sentence_and_nothing_is_written(
    words: str, says: str, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _bad_files(box)
    before = sorted(box.rglob("*"))
    assert code_of(*words.split()) == 2
    told = capsys.readouterr().err
    assert says in told
    assert "Traceback" not in told
    assert sorted(box.rglob("*")) == before


def test_a_write_that_fails_half_way_leaves_nothing(
    box: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_weights(small_model(dtype=torch.float32, final_norm=False), box / "ours")

    def full(*_given: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    before = sorted(box.rglob("*"))
    monkeypatch.setattr("model.weights.safetensors_bytes", full)
    for names in ("ours", "original"):
        assert code_of("export", "ours", "got", "--names", names) == 1
        assert "No space left" in capsys.readouterr().err
        assert sorted(box.rglob("*")) == before
