"""Which layers each stage of a pipeline gets."""

from __future__ import annotations

from math import ceil

Split = tuple[range, ...]
"""The layers of each stage."""


def balanced(num_layers: int, num_stages: int, head: float) -> Split:
    """Layers for each stage so that the slowest stage is as fast as can be.

    `head` is what the last stage does beside its layers, in layers. Where that leaves a choice, the
    last stage takes more, and the first ones less: they keep the activations of more microbatches.
    """
    if num_stages == 1:
        return (range(num_layers),)

    def slowest(at_last: int) -> float:
        return max(ceil((num_layers - at_last) / (num_stages - 1)), at_last + head)

    choices = range(num_layers - num_stages + 2)
    at_last = min(choices, key=lambda choice: (slowest(choice), -choice))
    size, extra = divmod(num_layers - at_last, num_stages - 1)
    plain = num_stages - 1 - extra
    sizes = [size] * plain + [size + 1] * extra + [at_last]
    starts = [sum(sizes[:stage]) for stage in range(num_stages)]
    return tuple(range(start, start + n) for start, n in zip(starts, sizes, strict=True))
