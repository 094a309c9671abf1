"""Dropout whose every decision is a function of (seed, step, row, site, place).

A row's noise is the same on any worker, in any chunk of an accumulated step, on a CPU and on a GPU,
and after a resume: there is no generator, so there is no state to keep. It costs about a third of
torch's own dropout on a CPU.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood 2014): the increment and the two multipliers of its finalizer.
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_LEVELS = 1 << 16  # a decision compares 16 random bits with the rate
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """Where the noise of a forward pass comes from.

    Attributes:
        seed: Of the run.
        step: Of the run; each step has its own noise. As a tensor, () int64 where the rows are, it
            gives the same noise, and torch.compile makes one graph for all steps.
        rows: (B,) int64, the rows' numbers in the global batch.
    """

    seed: int
    step: int | Tensor
    rows: Tensor

    def dropped(self, site: int, shape: tuple[int, ...], rate: float) -> Tensor:
        """Decide what a site of the model loses.

        Args:
            site: Number of the place in the model where the noise is used.
            shape: (B, ...) to decide on.
            rate: Part to lose; rounded to 1/65536.

        Returns:
            `shape`, bool, True where lost.
        """
        count = 1
        for size in shape[1:]:
            count *= size
        words = -(-count // 4)  # four decisions to a word
        rows = _row_keys(self.seed, self.step, site, self.rows)  # (B,)
        counter = torch.arange(words, device=rows.device) * _signed(_GOLDEN)
        bits = _quarters(_mix_(rows[:, None] + counter))  # (B, 4 * words)
        lost = bits < round(rate * _LEVELS) - _LEVELS // 2
        return lost[:, :count].view(shape)

    def shared(self) -> "Noise":
        """The noise of what all rows share, such as the positions: that of a row -1."""
        return Noise(seed=self.seed, step=self.step, rows=torch.full_like(self.rows[:1], -1))


def drop(x: Tensor, rate: float, noise: Noise | None, site: int) -> Tensor:
    """Lose a part of x, (B, ...), and scale up the rest; x itself without noise or rate."""
    if noise is None or rate == 0:
        return x
    lost = noise.dropped(site, tuple(x.shape), rate)
    return (x * (1 / (1 - rate))).masked_fill(lost, 0)  # the graph keeps a bool, not a float


def uniform(seed: int, step: int, rows: Tensor) -> Tensor:
    """Draw one number in [0, 1) for each row (B,) at a step: float64."""
    bits = torch.bitwise_right_shift(_row_keys(seed, step, -1, rows), 11) & (_WORD >> 11)
    return bits.double() / (1 << 53)


def _quarters(words: Tensor) -> Tensor:
    """Cut int64 words (B, W) into int16, (B, 4 * W), the lowest quarter first."""
    if torch.compiler.is_compiling():  # torch 2.13's CPU code corrupts the heap at such a view
        left = torch.bitwise_left_shift
        quarters = [torch.bitwise_right_shift(left(words, 48 - 16 * q), 48) for q in range(4)]
        return torch.stack(quarters, dim=2).flatten(1)
    return words.view(torch.int16)


def _row_keys(seed: int, step: int | Tensor, site: int, rows: Tensor) -> Tensor:
    if isinstance(step, Tensor):  # the same words, by tensors
        of_step = _mix_((step ^ _signed(_mixed(seed))) + _signed(_GOLDEN))
        return _mix_(rows * _signed(_GOLDEN) + _mix_((of_step ^ site) + _signed(_GOLDEN)))
    key = _mixed(_mixed(_mixed(seed) ^ (step & _WORD)) ^ (site & _WORD))
    return _mix_(rows * _signed(_GOLDEN) + _signed(key))


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _mixed(word: int) -> int:
    """SplitMix64's next value, for plain integers."""
    z = (word + _GOLDEN) & _WORD
    z = ((z ^ (z >> 30)) * _FIRST) & _WORD
    z = ((z ^ (z >> 27)) * _SECOND) & _WORD
    return z ^ (z >> 31)


def _mix_(z: Tensor) -> Tensor:
    """SplitMix64's finalizer on int64, in place; torch shifts signed words, so the sign is cut."""
    shifted = torch.empty_like(z)
    for shift, factor in ((30, _FIRST), (27, _SECOND), (31, None)):
        torch.bitwise_right_shift(z, shift, out=shifted)
        shifted &= _WORD >> shift
        z ^= shifted
        if factor is not None:
            z *= _signed(factor)
    return z
