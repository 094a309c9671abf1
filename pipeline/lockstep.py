"""How many rows a source of few documents can serve: with more, some read the same text at a time.

While a document of the source is open, so many tokens may be dealt; the source gives its share of
them and what it is behind. If that is less than all its documents, none can come round again before
the first is done. Nothing is walked: it holds for every seed, at every step.
"""

from collections.abc import Callable

import numpy as np

from pipeline.lengths import Int64s, Mixed


def rows_served(mixture: Mixed, number: int, taken: Callable[[Int64s], Int64s]) -> int:
    """The most rows with which never more of them read a source than it holds documents.

    On the safe side: it may be that more would do.

    Args:
        mixture: The sources; each holds a document.
        number: Of the source.
        taken: Row positions that documents of so many text tokens take.
    """
    sources, weights, total = mixture.sources, mixture.weights, sum(mixture.weights)
    longest = taken(np.array([source.longest for source in sources])).tolist()
    source, weight = sources[number], weights[number]
    inputs = np.sort(taken(source.at(np.arange(source.count))[1]))
    # Of `count` documents dealt in a row, the last of an epoch and the first of the next may be the
    # same ones: these are the fewest tokens that they can have.
    half = source.count // 2
    least = 2 * int(inputs[:half].sum()) + source.count % 2 * int(inputs[half])
    # No source is ahead of its share by a document, so none is further behind than this / total.
    behind = sum(
        (total - w) * n
        for other, (w, n) in enumerate(zip(weights, longest, strict=True))
        if other != number
    )
    # A row goes on by less than the source's longest document while one is open, and then has at
    # most one of any source to read.
    a_row = weight * (longest[number] - 1 + max(longest))
    return max(source.count, (total * least - behind - 1) // a_row)
