"""Every published option, against the definition written out in plain numpy."""

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.memory import empty_memory
from model.reach import reach_of
from model.reference import Dialect, config_from_reference, from_reference, to_reference
from model.transformer_xl import TransformerXL
from model.weights import set_weights
from tests.models import same
from tests.published import Published

V = 19


@st.composite
def published_configs(draw: st.DrawFn) -> dict[str, Any]:
    cutoffs = draw(st.sampled_from([[], [7], [1, 8], [5, 9, 12]]))
    clusters = len(cutoffs) + 1
    return {
        "n_token": V,
        "n_layer": draw(st.integers(1, 2)),
        "n_head": 2,
        "d_head": draw(st.integers(1, 3)),
        "d_model": 8,
        "d_inner": 5,
        "d_embed": draw(st.sampled_from([8, 16])),
        "mem_len": draw(st.integers(1, 7)),
        "clamp_len": draw(st.sampled_from([-1, 0, 2])),
        "same_length": draw(st.booleans()),
        "pre_lnorm": draw(st.booleans()),
        "untie_r": draw(st.booleans()),
        "cutoffs": cutoffs,
        "div_val": draw(st.sampled_from([1, 2])),
        "tie_weight": draw(st.booleans()),
        "tie_projs": draw(st.lists(st.booleans(), min_size=clusters, max_size=clusters)),
        "attn_type": 0,
    }


def random_model(config: dict[str, Any], seed: int) -> TransformerXL:
    model = TransformerXL(config_from_reference(config)).double()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.5, generator=source)
    return model


def with_second_names(named: dict[str, torch.Tensor], config: dict[str, Any]) -> dict[str, Any]:
    """Tied weights under both names, as the published code reads them."""
    full = {name.removeprefix("transformer."): tensor.numpy() for name, tensor in named.items()}
    for cluster, tied in enumerate(config["tie_projs"]):
        table = cluster if config["div_val"] > 1 else 0
        if config["tie_weight"] and f"word_emb.emb_layers.{table}.weight" in full:
            full[f"crit.out_layers.{table}.weight"] = full[f"word_emb.emb_layers.{table}.weight"]
        if tied and f"word_emb.emb_projs.{table}" in full:
            full[f"crit.out_projs.{cluster}"] = full[f"word_emb.emb_projs.{table}"]
    return full


@settings(max_examples=25)
@given(
    config=published_configs(),
    dialect=st.sampled_from(["original", "huggingface"]),
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    memories=st.lists(st.integers(1, 7), min_size=4, max_size=4),
)
def test_the_model_is_the_published_one_with_every_option(
    config: dict[str, Any], dialect: Dialect, seed: int, lengths: list[int], memories: list[int]
) -> None:
    model = random_model(config, seed)
    named = to_reference(model.state_dict(), model.config, dialect=dialect)
    published = Published(config, with_second_names(named, config))
    memory = empty_memory(model.config, 1, dtype=torch.float64)
    rng, at = np.random.default_rng(seed), 0
    for length, keep in zip(lengths, memories, strict=False):
        tokens = rng.integers(V, size=length).tolist()
        offset = torch.arange(at, at + length)[None]
        at += length
        hidden, memory = model(
            torch.tensor([tokens]), offset, memory, reach=reach_of(model.config, keep)
        )
        found = model.log_prob(hidden)[0].detach()
        wanted = [
            published.log_prob(one, reverse_clusters=dialect == "original")
            for one in published.read(tokens, keep)
        ]
        same(found, torch.from_numpy(np.array(wanted)), close=1e-10)
        targets = torch.from_numpy(rng.integers(V, size=(1, length)))
        same(model.nll(hidden, targets)[0], -found.gather(1, targets[0][:, None])[:, 0])


@settings(max_examples=25)
@given(
    config=published_configs(),
    dialect=st.sampled_from(["original", "huggingface"]),
    seed=st.integers(0, 2**31),
)
def test_published_names_go_out_and_come_back(
    config: dict[str, Any], dialect: Dialect, seed: int
) -> None:
    model = random_model(config, seed)
    named = to_reference(model.state_dict(), model.config, dialect=dialect)
    again = random_model(config, seed + 1)
    given_dialect = dialect if config["cutoffs"] else None
    set_weights(again, from_reference(named, again.config, dialect=given_dialect))
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight)
