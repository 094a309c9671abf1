"""The model: tokens, offsets and a memory in; hidden states and the next memory out."""

import torch
from torch import Tensor, nn

from model.attention import Attention, sight
from model.backends import attention_of, in_words
from model.config import Backend, ModelConfig, require
from model.embedding import Embedding
from model.initialize import initialize
from model.inputs import check_memory, check_segment
from model.layer import SITES, Layer, Pass
from model.memory import Memory, remember
from model.noise import Noise, drop
from model.positions import distance_vectors
from model.reach import Reach, reach_of
from model.softmax import Softmax

# Places of the model where noise enters, before those of the layers.
EMBEDDED, POSITIONS, LAST = range(3)


class TransformerXL(nn.Module):
    """Transformer-XL with a memory that is given and returned, and cut off where documents begin.

    `train()` and `eval()` change nothing: noise enters if it is given.

    Args:
        config: The model's shape; its vocabulary must be known by now.
        seed: Of the weights at the start; torch's own generators are not touched.
        backend: How to attend (model/backends.py).

    Source: Dai et al. 2019, arXiv:1901.02860.
    """

    def __init__(self, config: ModelConfig, *, seed: int = 0, backend: Backend = "auto") -> None:
        super().__init__()
        require(
            config.vocab_size > 0,
            "model.vocab_size is 0, which stands for the store's: put the store's vocab_size in "
            "before the model is built.",
        )
        self.config = config
        self.chosen: Backend = backend
        with torch.random.fork_rng(devices=[]):  # torch draws weights too, which are drawn over
            self._build(config)
        initialize(self, config, seed=seed)

    def _build(self, config: ModelConfig) -> None:
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(
            Layer(config, first_site=LAST + 1 + SITES * layer) for layer in range(config.layers)
        )
        pairs = config.layers if config.untie_r else 1
        shape = (pairs, config.heads, config.head_width)
        self.content_bias = nn.Parameter(torch.empty(shape))  # u
        self.position_bias = nn.Parameter(torch.empty(shape))  # v
        final = config.pre_norm and config.final_norm
        self.norm = nn.LayerNorm(config.width) if final else nn.Identity()
        self.softmax = Softmax(config)

    @property
    def backend(self) -> str:
        """How the model attends, in words for a run's first lines."""
        return in_words(self.chosen, device=self.content_bias.device)

    def forward(
        self,
        tokens: Tensor,
        offset: Tensor,
        memory: Memory,
        noise: Noise | None = None,
        *,
        reach: Reach | None = None,
    ) -> tuple[Tensor, Memory]:
        """Read a segment.

        Args:
            tokens: (B, L) int64.
            offset: (B, L) int64, tokens of its document before each token.
            memory: What the rows remember; of any length.
            noise: Dropout's source; None drops nothing.
            reach: How far to look; None takes the config's, and keeps as much memory as was given.

        Returns:
            The last hidden states, (B, L, D), and the memory for the rows' next segment.

        Raises:
            ModelError: A shape, an id or an offset does not fit.
        """
        reach = reach or reach_of(self.config, memory.length)
        check_memory(self.config, memory)
        check_segment(self.config, tokens, offset, rows=len(memory.usable))
        past = memory.states.detach()
        seen = sight(offset, memory.usable, memory=memory.length, window=reach.window)
        shared = Pass(seen=seen, attention=self.attention, noise=noise)
        x = drop(self.embedding(tokens), self.config.dropout, noise, EMBEDDED)
        vectors = self.distance_vectors(memory.length + tokens.shape[1], reach, like=x)
        if noise is not None:
            vectors = drop(vectors[None], self.config.dropout, noise.shared(), POSITIONS)[0]
        levels: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            levels.append(x)
            x = layer(x, past[number], vectors, self.biases(number), shared)
        hidden = drop(self.norm(x), self.config.dropout, noise, LAST)
        return hidden, remember(memory, levels, length=reach.memory)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Give -log p(target) in nats: (B, L, D) and (B, L) to (B, L); 0 where -100."""
        return self.penalized(hidden, targets, z_loss=0.0)[0]

    def penalized(self, hidden: Tensor, targets: Tensor, *, z_loss: float) -> tuple[Tensor, Tensor]:
        """Give `nll` with z_loss * log(Z)^2 added, to train by, and that penalty; (B, L) each."""
        require(
            targets.shape == hidden.shape[:2],
            f"Targets are {list(targets.shape)} and hidden states {list(hidden.shape)}: "
            "give targets (B, L) for hidden states (B, L, D).",
        )
        return self.softmax.penalized(hidden, targets, self.embedding, z_loss=z_loss)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Give log p of every id: (..., D) to (..., V)."""
        return self.softmax.log_prob(hidden, self.embedding)

    @property
    def attention(self) -> Attention:
        """The function that attends now."""
        return attention_of(
            self.chosen, device=self.content_bias.device, grad=torch.is_grad_enabled()
        )

    def biases(self, layer: int) -> tuple[Tensor, Tensor]:
        """The position biases u and v of a layer, (H, E) each."""
        pair = layer if self.config.untie_r else 0
        return self.content_bias[pair], self.position_bias[pair]

    def distance_vectors(self, count: int, reach: Reach, *, like: Tensor) -> Tensor:
        """Position vectors of `count` distances, in the type of the residual stream."""
        return distance_vectors(
            count,
            self.config.width,
            clamp_len=reach.clamp_len,
            device=like.device,
            dtype=like.dtype,
        )
