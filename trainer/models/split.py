"""Which layers each stage of a pipeline gets."""

from __future__ import annotations

from math import ceil

Split = tuple[range, ...]
"""The layers of each stage."""


def balanced(num_layers: int, num_stages: int, head: float) -> Split:
    """The layers of each stage; the slowest stage is as fast as possible.

    `head` is the work of the last stage beside its layers, in units of one layer. Of equally good
    splits this is the one with more layers on the last stage and fewer on the first ones, which
    keep the activations of more microbatches.
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
