"""How much arithmetic a step is, by the model's shape, and how much of a device that uses.

Useful operations are counted: products of matrices alone, two operations for a multiplication with
its addition; of the scores those that a query may see; in the backward pass the gradients that
somebody wants, so none of the memory's states or the position vectors; nothing for what is computed
a second time.
"""

from model.config import ModelConfig

# Dense bf16 products a second, as the makers say.
PEAKS = {
    "B200": 2.25e15,
    "H200": 9.89e14,
    "H100": 9.89e14,
    "A100": 3.12e14,
    "L40S": 3.62e14,
    "L4": 1.21e14,
    "V100": 1.25e14,
}


def step_flops(config: ModelConfig, *, rows: int, segment: int) -> float:
    """Useful operations of a training step over `rows` rows of `segment` tokens, their memory full.

    Of an adaptive softmax the first cluster and the choice of cluster are counted, for how often
    the rarer ones are needed is the text's to say.
    """
    D, L = config.width, segment
    K = config.memory + L
    heads = config.heads * config.head_width
    visible = L * config.memory + L * (L + 1) / 2
    # Each product is one forward, one for the weight's gradient and one for the input's.
    inputs = K if config.pre_norm else L  # the memory's states have no gradient, but their norm has
    keys_and_values = (2 * K + inputs) * D * 2 * heads
    products = 3 * (
        L * D * heads * 2  # queries, and the way back
        + visible * heads * 3  # scores by content and by position, and what is attended to
        + L * D * config.inner_width * 2
    )
    head = config.cutoffs[0] + len(config.cutoffs) if config.cutoffs else config.vocab_size
    outside = L * config.embedding_width * head
    if config.embedding_width != D:
        outside += 2 * L * D * config.embedding_width
    shared = 2 * K * D * heads  # position keys, the same for all rows
    of_layers = config.layers * (rows * (keys_and_values + products) + shared)
    return 2.0 * (of_layers + 3 * rows * outside)


def peak_of(device: str, *, precision: str) -> float:
    """What a device of this name can do a second at most; 0 where that is not known here.

    Args:
        device: As torch.cuda.get_device_name says it.
        precision: Of the run; only bf16 is known.
    """
    if precision != "bf16":
        return 0.0
    return next((peak for name, peak in PEAKS.items() if name in device), 0.0)
