"""What a model is: every choice that shapes its weights or its numbers, checked once."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Backend = Literal[
    "auto", "plain", "dense", "sdpa", "chunked", "triton"
]  # model/backends.py says what each is


class ModelError(ValueError):
    """A model cannot be built, loaded or called like this; the message says what to change."""


def require(holds: bool, message: str) -> None:
    """Raise ModelError unless `holds`."""
    if not holds:
        raise ModelError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Transformer-XL's shape. Defaults that are not sizes are the published ones.

    Attributes:
        vocab_size: Token ids the model knows (V); 0 stands for the store's, until a model is built.
        layers: Layers (N).
        width: Width of the residual stream (D).
        heads: Attention heads of a layer (H).
        head_width: Width of one head (E).
        inner_width: Width inside the feed-forward layers.
        memory: Hidden states a layer keeps for a row in training (M); 0 keeps none.
        dropout: Rate at the embedding, the positions, every sub-layer's output and the last output.
        attention_dropout: Rate at the attention weights.
        pre_norm: Normalise what enters a sub-layer, not what leaves it.
        final_norm: With `pre_norm`, normalise the last output too. The published code does not.
        untie_r: Each layer has its own pair of position biases u and v.
        tie_weights: Output rows are the embedding's.
        clamp_len: Distances above it count as it; 0 never clamps.
        same_length: A query sees at most `memory` keys, its own included.
        embed_width: Width of an embedding before its projection to `width`; 0 takes `width`.
        cutoffs: First ids of the rarer clusters, ascending; empty for one plain softmax.
        div_val: Cluster i has embeddings `div_val ** i` times narrower.
        tie_projections: For each cluster, whether its output projection is the embedding's; empty
            ties none.
        init_std: Standard deviation of the weights at the start.
        proj_init_std: The same for the projections of embeddings.
    """

    vocab_size: int = 0
    layers: int = 4
    width: int = 256
    heads: int = 4
    head_width: int = 64
    inner_width: int = 1024
    memory: int = 128
    dropout: float = 0.1
    attention_dropout: float = 0.0
    pre_norm: bool = False
    final_norm: bool = True
    untie_r: bool = False
    tie_weights: bool = True
    clamp_len: int = 0
    same_length: bool = False
    embed_width: int = 0
    cutoffs: tuple[int, ...] = ()
    div_val: int = 1
    tie_projections: tuple[bool, ...] = ()
    init_std: float = 0.02
    proj_init_std: float = 0.01

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "head_width", "inner_width", "div_val"):
            _at_least(self, name, 1)
        for name in ("vocab_size", "memory", "clamp_len", "embed_width"):
            _at_least(self, name, 0)
        for name in ("dropout", "attention_dropout"):
            rate = getattr(self, name)
            require(0 <= rate < 1, f"model.{name} = {rate} must lie in [0, 1).")
        for name in ("init_std", "proj_init_std"):
            std = getattr(self, name)
            require(std > 0, f"model.{name} = {std} must be above 0.")
        require(
            self.width % 2 == 0,
            f"model.width = {self.width} must be even: a position is as many sines as cosines.",
        )
        require(
            not (self.same_length and self.memory == 0),
            "model.same_length lets a query see `memory` keys, and model.memory is 0: "
            "give it a memory, or switch same_length off.",
        )
        self._check_clusters()

    def _check_clusters(self) -> None:
        ids = (0, *self.cutoffs, *([self.vocab_size] if self.vocab_size else []))
        require(
            all(low < high for low, high in pairwise(ids)),
            f"model.cutoffs = {list(self.cutoffs)} must ascend strictly between 0 and the "
            f"vocabulary ({self.vocab_size or 'of the store'}).",
        )
        narrowest = self.embedding_width // self.div_val ** len(self.cutoffs)
        require(
            narrowest >= 1,
            f"model.div_val = {self.div_val} leaves the last of {len(self.cutoffs) + 1} clusters "
            f"no width: embeddings start {self.embedding_width} wide.",
        )
        require(
            len(self.tie_projections) in (0, len(self.cutoffs) + 1),
            f"model.tie_projections has {len(self.tie_projections)} entries and there are "
            f"{len(self.cutoffs) + 1} clusters: give one for each, or none.",
        )

    @property
    def embedding_width(self) -> int:
        """Width of the first cluster's embeddings."""
        return self.embed_width or self.width

    @property
    def cluster_edges(self) -> tuple[int, ...]:
        """Edges of the clusters: 0, the cutoffs, V."""
        return (0, *self.cutoffs, self.vocab_size)

    def ties_projection(self, cluster: int) -> bool:
        """Whether a cluster's output projection is the embedding's."""
        return bool(self.tie_projections) and self.tie_projections[cluster]


def _at_least(config: ModelConfig, name: str, least: int) -> None:
    value = getattr(config, name)
    require(value >= least, f"model.{name} = {value} must be at least {least}.")
