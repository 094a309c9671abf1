"""The names that the published implementations give to a model's settings and weights.

Two dialects: the original PyTorch code and Hugging Face's port. They differ in a prefix, and in the
order of the head's entries for the rarer clusters: the original counts them from the last.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from model.config import ModelConfig, ModelError

Dialect = Literal["original", "huggingface"]

_SETTINGS = {
    "vocab_size": ("n_token", "vocab_size"),
    "layers": ("n_layer",),
    "width": ("d_model",),
    "heads": ("n_head",),
    "head_width": ("d_head",),
    "inner_width": ("d_inner",),
    "memory": ("mem_len",),
    "dropout": ("dropout",),
    "attention_dropout": ("dropatt",),
    "pre_norm": ("pre_lnorm",),
    "untie_r": ("untie_r",),
    "tie_weights": ("tie_weight", "tie_word_embeddings"),
    "same_length": ("same_length",),
    "embed_width": ("d_embed",),
    "div_val": ("div_val",),
    "init_std": ("init_std",),
    "proj_init_std": ("proj_init_std",),
}
_LAYER_PARTS = {
    "position.weight": "dec_attn.r_net.weight",
    "output.weight": "dec_attn.o_net.weight",
    "attention_norm.weight": "dec_attn.layer_norm.weight",
    "attention_norm.bias": "dec_attn.layer_norm.bias",
    "inner.weight": "pos_ff.CoreNet.0.weight",
    "inner.bias": "pos_ff.CoreNet.0.bias",
    "outer.weight": "pos_ff.CoreNet.3.weight",
    "outer.bias": "pos_ff.CoreNet.3.bias",
    "feed_norm.weight": "pos_ff.layer_norm.weight",
    "feed_norm.bias": "pos_ff.layer_norm.bias",
}
_BIASES = {"content_bias": "r_w_bias", "position_bias": "r_r_bias"}
_PREFIX = "transformer."


def config_from_reference(settings: Mapping[str, Any]) -> ModelConfig:
    """Read a published configuration; it has no final normalisation.

    Raises:
        ModelError: A setting is missing, or asks for positions other than the paper's.
    """
    if settings.get("attn_type", 0) != 0:
        raise ModelError(
            f"The configuration says attn_type {settings['attn_type']}; only 0 is understood, the "
            "relative positions of the paper."
        )
    found: dict[str, Any] = {"final_norm": False}
    for ours, theirs in _SETTINGS.items():
        values = [settings[name] for name in theirs if name in settings]
        if values:
            found[ours] = values[0]
    missing = [
        _SETTINGS[name][0]
        for name in ("vocab_size", "layers", "width", "heads", "head_width", "inner_width")
        if name not in found
    ]
    if missing:
        raise ModelError(f"The configuration has no {', '.join(missing)}; all of them are needed.")
    cutoffs = tuple(settings.get("cutoffs") or ())
    if cutoffs and cutoffs[-1] == found["vocab_size"]:
        cutoffs = cutoffs[:-1]
    ties = settings.get("tie_projs") or []
    if settings.get("proj_share_all_but_first") and "tie_projs" not in settings:
        ties = [False] + [True] * len(cutoffs)
    ties = [bool(tie) for tie in ties] + [False] * (len(cutoffs) + 1 - len(ties))
    return ModelConfig(
        **found,
        clamp_len=max(0, int(settings.get("clamp_len", 0))),
        cutoffs=cutoffs,
        tie_projections=tuple(ties) if any(ties) else (),
    )


def config_to_reference(config: ModelConfig, *, dialect: Dialect = "original") -> dict[str, Any]:
    """Write a config by its published names; `config_from_reference` reads it back.

    Raises:
        ModelError: As `to_reference`.
    """
    _check_norm(config)
    place = -1 if dialect == "huggingface" else 0
    told = {theirs[place]: getattr(config, ours) for ours, theirs in _SETTINGS.items()}
    clusters = range(len(config.cutoffs) + 1)
    told |= {
        "d_embed": config.embedding_width,
        "attn_type": 0,
        "clamp_len": config.clamp_len or -1,
        "cutoffs": list(config.cutoffs),
        "tie_projs": [config.ties_projection(cluster) for cluster in clusters],
    }
    if dialect == "huggingface":
        told |= {"model_type": "transfo-xl", "architectures": ["TransfoXLLMHeadModel"]}
    return told


def from_reference(
    tensors: Mapping[str, Tensor], config: ModelConfig, *, dialect: Dialect | None = None
) -> dict[str, Tensor]:
    """Translate published weights to a state dict of TransformerXL.

    Args:
        tensors: By their published names; of tied ones either may be there, or both.
        config: Of the model.
        dialect: Whose names and cluster order; None tells by the prefix "transformer.".

    Raises:
        ModelError: A weight is missing, unknown, of another shape, or not tied as the config says.
    """
    if dialect is None:
        prefixed = any(name.startswith(_PREFIX) for name in tensors)
        dialect = "huggingface" if prefixed else "original"
    plain = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
    known = {theirs: ours for ours, theirs in _one_to_one(config)}
    _check_names(plain, config, known)
    state = {ours: plain[theirs] for theirs, ours in known.items()}
    for layer in range(config.layers):
        qkv = plain[f"layers.{layer}.dec_attn.qkv_net.weight"]
        third = config.heads * config.head_width
        state[f"layers.{layer}.query.weight"] = qkv[:third]
        state[f"layers.{layer}.key_value.weight"] = qkv[third:]
    for ours, theirs in _BIASES.items():
        state[ours] = torch.stack([plain[name] for name in _bias_names(config, theirs)])
    if config.cutoffs and dialect == "original":
        for name in ("softmax.cluster_table", "softmax.cluster_bias"):
            state[name] = state[name].flip(0)
    return {name: tensor.contiguous() for name, tensor in state.items()}


def to_reference(
    state: Mapping[str, Tensor], config: ModelConfig, *, dialect: Dialect = "original"
) -> dict[str, Tensor]:
    """Translate a state dict of TransformerXL to published names; tied weights have one name.

    Raises:
        ModelError: The model has a final normalisation, which no published code knows.
    """
    _check_norm(config)
    named = {theirs: state[ours] for ours, theirs in _one_to_one(config)}
    for layer in range(config.layers):
        parts = [state[f"layers.{layer}.{name}.weight"] for name in ("query", "key_value")]
        named[f"layers.{layer}.dec_attn.qkv_net.weight"] = torch.cat(parts)
    for ours, theirs in _BIASES.items():
        for name, bias in zip(_bias_names(config, theirs), state[ours], strict=True):
            named[name] = bias.clone()
    if config.cutoffs and dialect == "original":
        for name in ("crit.cluster_weight", "crit.cluster_bias"):
            named[name] = named[name].flip(0)
    if dialect == "huggingface":
        named = {
            name if name.startswith("crit.") else _PREFIX + name: tensor
            for name, tensor in named.items()
        }
    return named


def _check_norm(config: ModelConfig) -> None:
    if config.pre_norm and config.final_norm:
        raise ModelError(
            "This model normalises its last output (model.final_norm), and the published models do "
            "not: it cannot be written in their form without changing its numbers. Take our own "
            "names, `--names ours`, or train with model.final_norm = false."
        )


def _one_to_one(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Our name and theirs of every weight that is the same tensor in both."""
    for layer in range(config.layers):
        for ours, theirs in _LAYER_PARTS.items():
            yield f"layers.{layer}.{ours}", f"layers.{layer}.{theirs}"
    clusters = len(config.cutoffs) + 1
    tables = clusters if config.div_val > 1 else 1
    projected = config.div_val > 1 or config.embedding_width != config.width
    for table in range(tables):
        yield f"embedding.tables.{table}", f"word_emb.emb_layers.{table}.weight"
        yield f"softmax.biases.{table}", f"crit.out_layers.{table}.bias"
        if not config.tie_weights:
            yield f"softmax.tables.{table}", f"crit.out_layers.{table}.weight"
        if projected:
            yield f"embedding.projections.{table}", f"word_emb.emb_projs.{table}"
    if projected:
        for cluster in range(clusters):
            if not config.ties_projection(cluster):
                yield f"softmax.projections.{cluster}", f"crit.out_projs.{cluster}"
    if config.cutoffs:
        yield "softmax.cluster_table", "crit.cluster_weight"
        yield "softmax.cluster_bias", "crit.cluster_bias"


def _bias_names(config: ModelConfig, name: str) -> list[str]:
    if not config.untie_r:
        return [name]
    return [f"layers.{layer}.dec_attn.{name}" for layer in range(config.layers)]


def _second_names(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Second name and first of what is tied."""
    for cluster in range(len(config.cutoffs) + 1):
        table = cluster if config.div_val > 1 else 0
        if config.tie_weights:
            yield f"crit.out_layers.{table}.weight", f"word_emb.emb_layers.{table}.weight"
        if config.ties_projection(cluster):
            yield f"crit.out_projs.{cluster}", f"word_emb.emb_projs.{table}"
    if not config.untie_r:
        for layer in range(config.layers):
            for name in _BIASES.values():
                yield f"layers.{layer}.dec_attn.{name}", name


def _check_names(plain: dict[str, Tensor], config: ModelConfig, known: Mapping[str, str]) -> None:
    """Refuse what is missing or unknown; fill in a first name where only the second is there."""
    second = dict(_second_names(config))
    for name, first in second.items():
        if name in plain and not torch.equal(plain.setdefault(first, plain[name]), plain[name]):
            raise ModelError(
                f"{name} and {first} differ, and the configuration says that they are one: "
                "set tie_weight, tie_projs and untie_r as the model was trained."
            )
    wanted = {
        *known,
        *(f"layers.{layer}.dec_attn.qkv_net.weight" for layer in range(config.layers)),
        *(bias for name in _BIASES.values() for bias in _bias_names(config, name)),
    }
    missing = sorted(wanted - set(plain))
    unknown = sorted(set(plain) - wanted - set(second) - {"pos_emb.inv_freq"})
    if missing or unknown:
        raise ModelError(
            f"The weights are not those of this configuration: "
            f"missing {missing or 'none'}, unknown {unknown or 'none'}."
        )
