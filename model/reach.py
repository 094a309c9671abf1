"""How far back a forward pass looks."""

from dataclasses import dataclass

from model.config import ModelConfig, require


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What may differ between training, evaluation and generation with the same weights.

    Attributes:
        memory: States the returned memory keeps.
        clamp_len: Distances above it count as it; 0 never clamps.
        window: Keys a query sees at most, its own included; 0 sets no such limit.
    """

    memory: int
    clamp_len: int = 0
    window: int = 0

    def __post_init__(self) -> None:
        for name in ("memory", "clamp_len", "window"):
            value = getattr(self, name)
            require(value >= 0, f"{name} = {value} must be 0 or more.")


def reach_of(config: ModelConfig, memory: int) -> Reach:
    """The reach of a config, with a memory of another length.

    With `same_length` a query sees as many keys as the memory has states, as in the original
    PyTorch code; its TensorFlow twin lets it see one more.

    Raises:
        ModelError: `same_length` without a memory: nothing would be left to see.
    """
    require(
        memory > 0 or not config.same_length,
        "model.same_length lets a query see as many keys as the memory has states, and this one "
        "has 0: give it a memory, or switch same_length off.",
    )
    return Reach(
        memory=memory, clamp_len=config.clamp_len, window=memory if config.same_length else 0
    )
