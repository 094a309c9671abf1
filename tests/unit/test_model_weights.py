"""Weights and configs go to disk and come back, or are refused with a sentence."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import ModelConfig, ModelError
from model.memory import empty_memory
from model.reach import reach_of
from model.reference import config_from_reference, from_reference, to_reference
from model.transformer_xl import TransformerXL
from model.weights import (
    CONFIG,
    WEIGHTS,
    config_from_json,
    config_to_json,
    load_weights,
    read_tensors,
    save_weights,
    set_weights,
)
from tests.models import OPTIONS, fresh, small_config, small_model


@pytest.mark.parametrize("option", range(len(OPTIONS)))
def test_a_model_comes_back_from_disk_as_it_was(option: int, tmp_path: Path) -> None:
    model = small_model(dtype=torch.float32, **OPTIONS[option])
    save_weights(model, tmp_path / "new" / "folder")
    again = load_weights(tmp_path / "new" / "folder")
    assert again.config == model.config
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight)
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {CONFIG, WEIGHTS}


def test_weights_of_another_config_are_refused_by_name() -> None:
    tensors = small_model().state_dict()
    with pytest.raises(ModelError, match=r"layers\.1\.attention_norm\.bias has shape \[12\]"):
        set_weights(small_model(layers=1), tensors)
    with pytest.raises(ModelError, match=r"content_bias has shape \[1, 2, 5\].*wants \[1, 3, 5\]"):
        set_weights(small_model(heads=3), tensors)
    with pytest.raises(ModelError, match="it is missing"):
        set_weights(small_model(layers=3), tensors)


def test_a_pickle_or_a_torn_file_is_refused(tmp_path: Path) -> None:
    save_weights(small_model(), tmp_path)
    whole = (tmp_path / WEIGHTS).read_bytes()
    for damaged in (pickle.dumps({"a": 1}), whole[: len(whole) // 2], b""):
        (tmp_path / WEIGHTS).write_bytes(damaged)
        with pytest.raises(ModelError, match="not a whole safetensors file"):
            read_tensors(tmp_path / WEIGHTS)
    (tmp_path / CONFIG).unlink()
    with pytest.raises(ModelError, match=f"has no {CONFIG}"):
        load_weights(tmp_path)


def test_a_config_goes_through_json_and_unknown_names_do_not() -> None:
    config = small_config(**OPTIONS[-1])
    text = config_to_json(config)
    assert config_from_json(text) == config
    values = json.loads(text)
    with pytest.raises(ModelError, match=r"unknown \['colour'\]"):
        config_from_json(json.dumps({**values, "colour": 1}))
    values.pop("width")
    with pytest.raises(ModelError, match=r"lacks \['width'\]"):
        config_from_json(json.dumps(values))
    with pytest.raises(ModelError, match="not JSON"):
        config_from_json("{")
    with pytest.raises(ModelError, match="list"):
        config_from_json("[]")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 7}, "width = 7 must be even"),
        ({"layers": 0}, r"layers = 0 must be at least 1"),
        ({"memory": -1}, r"memory = -1 must be at least 0"),
        ({"dropout": 1.0}, r"dropout = 1\.0 must lie in \[0, 1\)"),
        ({"init_std": 0.0}, r"init_std = 0\.0 must be above 0"),
        ({"same_length": True, "memory": 0}, "give it a memory"),
        ({"cutoffs": (5, 5)}, "must ascend strictly"),
        ({"cutoffs": (5, 23)}, "must ascend strictly"),
        ({"cutoffs": (5, 9), "div_val": 4}, "leaves the last of 3 clusters"),
        ({"tie_projections": (True, True)}, "has 2 entries and there are 1 clusters"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        small_config(**changes)


def test_a_model_is_not_built_before_its_vocabulary_is_known() -> None:
    with pytest.raises(ModelError, match="vocab_size is 0"):
        TransformerXL(ModelConfig())


def test_a_segment_that_does_not_fit_is_refused() -> None:
    model = small_model()
    memory = fresh(model, 2)
    tokens, offset = torch.zeros(2, 3, dtype=torch.int64), torch.arange(3).expand(2, 3)
    for bad_tokens, bad_offset, message in [
        (tokens[:1], offset[:1], "the memory has 2 rows"),
        (tokens, offset[:, :2], r"Tokens are \[2, 3\], offsets \[2, 2\]"),
        (tokens[:, :0], offset[:, :0], "The segment is empty"),
        (tokens + 23, offset, "Token id 23 is not in the vocabulary of 23"),
        (tokens - 1, offset, "Token id -1"),
        (tokens, offset - 1, "offsets of row 0"),
        (tokens, torch.tensor([[0, 1, 2], [4, 5, 7]]), "offsets of row 1"),
    ]:
        with pytest.raises(ModelError, match=message):
            model(bad_tokens, bad_offset, memory)
    with pytest.raises(ModelError, match="wanted \\(N, B, M, D\\)"):
        model(tokens, offset, empty_memory(small_config(layers=1), 2))
    hidden, _ = model(tokens, offset, memory)
    with pytest.raises(ModelError, match="Targets are"):
        model.nll(hidden, tokens[:, :2])
    with pytest.raises(ModelError, match="same_length"):
        reach_of(small_config(same_length=True), 0)


def test_reference_weights_that_do_not_fit_are_refused() -> None:
    published = {
        "n_token": 23, "n_layer": 2, "d_model": 12, "n_head": 2, "d_head": 5, "d_inner": 10,
    }  # fmt: skip
    config = config_from_reference(published)
    named = to_reference(TransformerXL(config).state_dict(), config)
    with pytest.raises(ModelError, match=r"missing \['r_r_bias'\], unknown \['x'\]"):
        from_reference(
            {
                **{name: w for name, w in named.items() if name != "r_r_bias"},
                "x": named["r_w_bias"],
            },
            config,
        )
    other = named["word_emb.emb_layers.0.weight"] + 1
    with pytest.raises(ModelError, match="differ, and the configuration says that they are one"):
        from_reference({**named, "crit.out_layers.0.weight": other}, config)
    with pytest.raises(ModelError, match="attn_type 2"):
        config_from_reference({**published, "attn_type": 2})
    with pytest.raises(ModelError, match="has no n_layer, d_model"):
        config_from_reference({"n_token": 3})
    with pytest.raises(ModelError, match="normalises its last output"):
        to_reference({}, small_config(pre_norm=True))


def test_weights_start_as_published_from_their_own_seed() -> None:
    config = small_config(width=64, inner_width=256, cutoffs=(9,), embed_width=32)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    state, again = TransformerXL(config, seed=3).state_dict(), TransformerXL(config, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(state[name], w) for name, w in again.state_dict().items())
    other = TransformerXL(config, seed=4).state_dict()
    assert not torch.equal(state["content_bias"], other["content_bias"])
    for name, weight in state.items():
        gain = name.endswith("norm.weight")
        zero = name.endswith(("bias", "biases.0")) and name not in {"content_bias", "position_bias"}
        std = 0.01 if "projections" in name else 0.02
        if zero:
            assert (weight == 0).all()
        else:
            assert (weight.mean() - (1 if gain else 0)).abs() < 0.02
            if weight.numel() > 100:
                assert weight.std().item() == pytest.approx(std, rel=0.2)
