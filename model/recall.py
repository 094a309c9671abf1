"""Reading with frozen weights: memory kept as keys and values, projected once.

The numbers are those of TransformerXL.forward, which keeps hidden states and is the definition. A
token costs its own projections and the attention, and not those of all it remembers.
"""

import torch
from torch import Tensor

from model.attention import sight
from model.inputs import check_segment
from model.layer import Layer, Pass
from model.reach import Reach
from model.transformer_xl import TransformerXL


class Recall:
    """What some rows have read, and the means to read on.

    Args:
        model: Its weights must not change while this lives.
        rows: Rows (B), which have read nothing yet.
        reach: How far to look; its memory is what is kept.
    """

    def __init__(self, model: TransformerXL, rows: int, reach: Reach) -> None:
        self._model, self._rows, self._reach = model, rows, reach
        self._device = model.content_bias.device
        self._usable = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self._kv: Tensor | None = None  # (N, 2, H, B, C, E), with room to write on
        self._end = 0  # states written
        self._r: list[Tensor] = []  # (H, T + 1, E) of each layer, distances T - 1, ..., 0, spare

    @property
    def size_bytes(self) -> int:
        """What the kept keys and values take, room to write on included."""
        return 0 if self._kv is None else self._kv.untyped_storage().nbytes()

    @torch.no_grad()
    def read(self, tokens: Tensor, offset: Tensor) -> Tensor:
        """Read a segment, (B, L) twice, of any length; return the last hidden states (B, L, D)."""
        model = self._model
        check_segment(model.config, tokens, offset, rows=self._rows)
        L = tokens.shape[1]
        kept = min(self._end, self._reach.memory)
        x = model.embedding(tokens)
        kv = self._room(L, like=x)
        self._prepare_positions(kept + L, like=x)
        new = slice(self._end, self._end + L)
        seen = sight(offset, self._usable, memory=kept, window=self._reach.window)
        shared = Pass(seen=seen, attention=model.attention)
        finite = torch.ones(self._rows, dtype=torch.bool, device=x.device)
        for number, layer in enumerate(model.layers):
            assert isinstance(layer, Layer)  # noqa: S101
            finite &= x.isfinite().all(dim=2).all(dim=1)
            entering = layer.enter(x)
            for slot, part in zip(kv[number], layer.keys_and_values(entering), strict=True):
                slot[:, :, new] = part
            keys, values = kv[number, :, :, :, self._end - kept : self._end + L]
            r = self._r[number][:, -(kept + L + 1) :]
            q = layer.queries(entering, model.biases(number))
            x = layer.feed(x, layer.attend(q, (keys, values), r, shared), None)
        # As `remember` does it: such a row forgets. What it kept is out of sight, and finite.
        kv[:, :, :, :, new].masked_fill_(~finite.view(1, 1, 1, -1, 1, 1), 0)
        usable = (self._usable + L).clamp(max=self._reach.memory)
        self._usable = usable.masked_fill(~finite, 0)
        self._end += L
        return model.norm(x)

    def _room(self, L: int, *, like: Tensor) -> Tensor:
        """Give the buffer, with room for L more states; slides once in M tokens or so."""
        M, kept = self._reach.memory, min(self._end, self._reach.memory)
        if self._kv is not None and self._end + L <= self._kv.shape[4]:
            return self._kv
        config = self._model.config
        shape = (config.layers, 2, config.heads, self._rows, M + max(M, L), config.head_width)
        fresh = like.new_zeros(shape)
        if self._kv is not None:
            fresh[:, :, :, :, :kept] = self._kv[:, :, :, :, self._end - kept : self._end]
        self._kv, self._end = fresh, kept
        return fresh

    def _prepare_positions(self, count: int, *, like: Tensor) -> None:
        """Project the distances up to `count` once, and some more."""
        if self._r and self._r[0].shape[1] > count:
            return
        count = max(count, self._reach.memory + 1)
        vectors = self._model.distance_vectors(count, self._reach, like=like)
        self._r = [
            layer.position_keys(vectors).contiguous()
            for layer in self._model.layers
            if isinstance(layer, Layer)
        ]
