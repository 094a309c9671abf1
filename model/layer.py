"""One layer: relative attention and a feed-forward net, normalised before or after."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Attention, Drop, Queries, Sight
from model.config import ModelConfig
from model.noise import Noise, drop


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """What all layers of one forward pass share.

    Attributes:
        seen: What the queries may see.
        attention: How to attend.
        noise: Dropout's source; None drops nothing.
    """

    seen: Sight
    attention: Attention
    noise: Noise | None = None


# Places of a layer where noise enters.
WEIGHTS, ATTENDED, INNER, FED = range(4)
SITES = 4


class Layer(nn.Module):
    """Attention, then feed-forward; each added to what came in.

    Args:
        config: Of the model.
        first_site: Number of the first place of this layer where noise enters.
    """

    def __init__(self, config: ModelConfig, *, first_site: int) -> None:
        super().__init__()
        D, self.H, self.E = config.width, config.heads, config.head_width
        self.pre_norm = config.pre_norm
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.first_site = first_site
        self.query = nn.Linear(D, self.H * self.E, bias=False)
        self.key_value = nn.Linear(D, 2 * self.H * self.E, bias=False)
        self.position = nn.Linear(D, self.H * self.E, bias=False)
        self.output = nn.Linear(self.H * self.E, D, bias=False)
        self.attention_norm = nn.LayerNorm(D)
        self.inner = nn.Linear(D, config.inner_width)
        self.outer = nn.Linear(config.inner_width, D)
        self.feed_norm = nn.LayerNorm(D)

    def forward(
        self, x: Tensor, past: Tensor, vectors: Tensor, bias: tuple[Tensor, Tensor], shared: Pass
    ) -> Tensor:
        """Take a segment through the layer.

        Args:
            x: (B, L, D).
            past: (B, M, D), what the row's earlier x were.
            vectors: (K + 1, D), position vectors of distances K - 1, ..., 0, and a spare.
            bias: u and v, (H, E) each.
            shared: What all layers share.

        Returns:
            (B, L, D).
        """
        entering = self.enter(x)
        attended = self.attend(
            self.queries(entering, bias),
            self.keys_and_values(self.enter(past), entering),
            self.position_keys(vectors),
            shared,
        )
        return self.feed(x, attended, shared.noise)

    def enter(self, states: Tensor) -> Tensor:
        """Normalise raw states, as a memory holds them, if that comes first."""
        return self.attention_norm(states) if self.pre_norm else states

    def keys_and_values(self, *entering: Tensor) -> tuple[Tensor, Tensor]:
        """Project pieces (B, ..., D) of K states together to two of (H, B, K, E).

        Each piece by itself, for no gradient is wanted of a memory's states.
        """
        pieces: list[Tensor] = []
        for states in entering:
            B, length, _ = states.shape
            both = self.key_value(states).view(B, length, 2, self.H, self.E)
            pieces.append(both.permute(2, 3, 0, 1, 4))
        keys, values = (pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=3)).unbind(0)
        return keys, values

    def position_keys(self, vectors: Tensor) -> Tensor:
        """Project (K + 1, D) to (H, K + 1, E)."""
        return self.position(vectors).view(-1, self.H, self.E).transpose(0, 1)

    def queries(self, entering: Tensor, bias: tuple[Tensor, Tensor]) -> Queries:
        """Project (B, L, D), add each of u and v, (H, E), and divide by sqrt(E)."""
        B, L, _ = entering.shape
        q = self.query(entering).view(B, L, self.H, self.E)
        u, v = (((q + each) * self.E**-0.5).permute(2, 0, 1, 3) for each in bias)
        return u, v

    def attend(self, q: Queries, kv: tuple[Tensor, Tensor], r: Tensor, shared: Pass) -> Tensor:
        """Attend and project back, to (B, L, D)."""
        heads = shared.attention(q, *kv, r, shared.seen, self._losing(shared.noise))
        attended = self.output(heads.permute(1, 2, 0, 3).flatten(2))
        return drop(attended, self.dropout, shared.noise, self.first_site + ATTENDED)

    def feed(self, x: Tensor, attended: Tensor, noise: Noise | None) -> Tensor:
        """Finish the layer: add what was attended, feed forward, (B, L, D)."""
        x = x + attended if self.pre_norm else self.attention_norm(x + attended)
        inner = F.relu(self.inner(self.feed_norm(x) if self.pre_norm else x))
        inner = drop(inner, self.dropout, noise, self.first_site + INNER)
        fed = drop(self.outer(inner), self.dropout, noise, self.first_site + FED)
        return x + fed if self.pre_norm else self.feed_norm(x + fed)

    def _losing(self, noise: Noise | None) -> Drop | None:
        """What loses attention weights; None where none is lost."""
        if noise is None or self.attention_dropout == 0:
            return None
        return Drop(rate=self.attention_dropout, noise=noise, site=self.first_site + WEIGHTS)
