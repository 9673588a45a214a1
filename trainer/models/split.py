"""Which layers each stage of a pipeline gets."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

Split = tuple[range, ...]
"""The layers of each stage."""


@lru_cache(maxsize=1024)
def balanced(work: tuple[float, ...], num_stages: int, head: float) -> Split:
    """The layers of each stage; the slowest stage is as fast as possible.

    `work` has the work of each layer, `head` is the work of the last stage beside its layers. Of
    equally good splits this is the one with more layers on the last stage; the stages before it
    are split by the same rule, as a model of their own without a head. So the first stages, which
    keep the activations of more microbatches, have fewer layers. The last stage may have none.
    """
    done = [0.0, *accumulate(work)]
    slowest = _slowest(done, num_stages - 1)
    cuts, own, least = [len(work)], head, 0
    for others in range(num_stages - 1, 0, -1):
        end = cuts[-1]

        def rank(start: int, others: int = others, end: int = end, own: float = own) -> float:
            return max(slowest[others][start], done[end] - done[start] + own)

        cuts.append(min(range(others, end + 1 - least), key=rank))
        own, least = 0.0, 1
    return tuple(range(start, end) for start, end in pairwise([0, *reversed(cuts)]))


def _slowest(done: Sequence[float], num_stages: int) -> list[list[float]]:
    """At [k][n], the work of the slowest of k stages in the best split of the first n layers.

    `done[n]` is the work of these layers. With a later last cut the last stage has less work and
    the stages before it have more, so the best cut is where the two cross, or one before.
    """
    slowest = [[float("inf")] * len(done), list(done)]
    for k in range(2, num_stages + 1):
        before, row, cut = slowest[-1], [float("inf")] * len(done), k - 1
        for n in range(k, len(done)):
            while cut < n - 1 and before[cut] < done[n] - done[cut]:
                cut += 1
            cuts = range(max(k - 1, cut - 1), cut + 1)
            row[n] = min(max(before[at], done[n] - done[at]) for at in cuts)
        slowest.append(row)
    return slowest
