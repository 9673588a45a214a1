"""The order in which a rank runs the forwards and backwards of consecutive batches. Pure data.

An order yields (kind, chunk, flat): the kind of operation, the rank's chunk of the model, and the
number of the microbatch, counted from the first of these batches. A schedule that flushes asks for
one batch at a time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "I", "W", "U"]
"""Forward; backward, whole or its input and weight halves; update."""


class OrderStep(NamedTuple):
    """One forward or backward; `flat` numbers the microbatches of all batches consecutively."""

    kind: Kind
    chunk: int
    flat: int


class PipelineRank(NamedTuple):
    """The rank, the number of ranks, and the number of chunks of the model that each rank holds."""

    rank: int
    num_ranks: int
    num_chunks: int


Order = Callable[[PipelineRank, int], Iterator[OrderStep]]
"""(place, number of microbatches) → steps."""
Placement = Callable[[PipelineRank], tuple[int, ...]]
"""place → the stages that this rank holds, by chunk."""


def in_turns(at: PipelineRank) -> tuple[int, ...]:
    """Rank r of p holds stages r, r + p, r + 2p, …"""
    return tuple(range(at.rank, at.num_ranks * at.num_chunks, at.num_ranks))


def in_a_v(at: PipelineRank) -> tuple[int, ...]:
    """Rank r of p holds stages r and 2p − 1 − r: they go down the ranks and up again."""
    return at.rank, 2 * at.num_ranks - 1 - at.rank


def one_forward_one_backward(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """1F1B (arXiv 2006.09503): one forward for each later rank, then one forward, one backward."""
    return by_turns(at.num_ranks - 1 - at.rank, num_microbatches)


def with_slack(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """1F1B with two forwards for each later rank: a message that takes up to half as long as a
    forward and a backward keeps nobody waiting.

    In 1F1B a backward is there no earlier than it is needed, so every message to the next rank and
    back delays the rank by as much.
    """
    return by_turns(2 * (at.num_ranks - 1 - at.rank), num_microbatches)


def by_turns(
    num_ahead: int, num_microbatches: int, steps: range | None = None
) -> Iterator[OrderStep]:
    """So many forwards, then one backward and one forward by turns, then the last backwards.

    Step n is a forward n, and the backward that became due by it; `steps` are all by default.
    """
    for step in range(num_microbatches + num_ahead) if steps is None else steps:
        if step < num_microbatches:
            yield OrderStep("F", 0, step)
        if step >= num_ahead:
            yield OrderStep("B", 0, step - num_ahead)


def forwards_first(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """GPipe (arXiv 1811.06965): all forwards, then all backwards."""
    for kind in ("F", "B"):
        for flat in range(num_microbatches):
            yield OrderStep(kind, 0, flat)


def interleaved(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """Interleaved 1F1B (arXiv 2104.04473): groups of p microbatches go through one chunk at a time.

    The number of microbatches must be divisible by p.
    """
    p, v = at.num_ranks, at.num_chunks
    total = num_microbatches * v
    num_ahead = min(2 * (p - 1 - at.rank) + (v - 1) * p, total)

    def nth(k: int) -> tuple[int, int]:
        """Chunk and microbatch of the rank's k-th forward."""
        group, within = divmod(k, p * v)
        return within // p, group * p + within % p

    for step in range(total + num_ahead):
        if step < total:
            chunk, flat = nth(step)
            yield OrderStep("F", chunk, flat)
        if step >= num_ahead:
            chunk, flat = nth(step - num_ahead)
            yield OrderStep("B", v - 1 - chunk, flat)


def two_groups(at: PipelineRank, num_microbatches: int, *, per_batch: int) -> Iterator[OrderStep]:
    """WPipe (Yang et al., ICLR 2022): chunk 0 is of the first group, chunk 1 of the second.

    The forwards of the next batch through the first group come before the backwards of this one; in
    the second group a batch is finished before the next one starts.
    """
    yield from (OrderStep("F", 0, flat) for flat in range(min(per_batch, num_microbatches)))
    for first in range(0, num_microbatches, per_batch):
        for step in one_forward_one_backward(at, per_batch):
            yield OrderStep(step.kind, 1, first + step.flat)
        for flat in range(first, first + per_batch):
            if flat + per_batch < num_microbatches:
                yield OrderStep("F", 0, flat + per_batch)
            yield OrderStep("B", 0, flat)


def zero_bubble_h1(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """ZB-H1 (arXiv 2401.10241): rank r delays each weight half by r microbatches.

    So the weight halves fill what 1F1B leaves idle, while no rank keeps more than p microbatches.
    """
    put_off: list[int] = []
    for step in one_forward_one_backward(at, num_microbatches):
        if step.kind == "F":
            yield step
            continue
        yield step._replace(kind="I")
        put_off.append(step.flat)
        if len(put_off) > at.rank:
            yield OrderStep("W", 0, put_off.pop(0))
    yield from (OrderStep("W", 0, flat) for flat in put_off)


def zero_bubble_v(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """ZB-V (arXiv 2401.10241, section 6), for two chunks per rank that are placed `in_a_v`.

    While the first microbatch goes from rank r down to the last rank and back, rank r has time for
    2 (p − r) − 1 forwards of its chunk 0; while it goes on up to rank 0 and comes back as a
    backward, for forwards of both chunks by turns. From then on it runs a backward before each
    further forward, so that it keeps the activations of 2p forwards at most. Where no forwards are
    left, r weight halves of each chunk are put off, to fill the waits for the last backwards. With
    2p − 1 microbatches or more, and forwards and halves that take equally long, no rank is idle
    between its first and its last step. With fewer microbatches the order is as for 2p − 1, without
    the steps of microbatches that are not there.
    """
    p, r = at.num_ranks, at.rank
    num = max(num_microbatches, 2 * p - 1)
    parts = (
        ("F0", 2 * (p - r) - 1),
        ("F1 F0", r),
        ("F1 I1 W1", p - r),
        ("F0 I0 W0 F1 I1 W1", num - (2 * p - 1 - r)),
        ("I0 W0 F1 I1 W1", p - r - 1),
        ("I0 I1", r),
        ("I0 W0", p - r),
        ("W1", r),
        ("W0", r),
    )
    names = chain.from_iterable(words.split() * times for words, times in parts)
    yield from _numbered(names, num_microbatches)


def dualpipe_v(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """DualPipeV (DeepSeek's DualPipe, arXiv 2412.19437, cut in half), for two chunks per rank that
    are placed `in_a_v`; the number of microbatches must be 2p or more.

    In the steady state a forward of one chunk and a backward of the other make a pair, which
    DeepSeek computes at the same time, so that each hides the messages of the other. Here a rank
    runs the forward, then the backward. A whole backward is its two halves in a row: the gradient
    of the input leaves after the first. Of the last 2 (r + 1) backwards of rank r, which are of
    both chunks by turns, the second half puts its weight halves off, to fill the waits for the
    backwards of chunk 0 that follow.
    """
    p, r = at.num_ranks, at.rank
    turns = ["1", "0"] * (r + 1)
    whole, halves = turns[: r + 1], turns[r + 1 :]
    put_off = [*(f"W{chunk}" for chunk in halves), *["W0"] * (p - r - 1)]
    names = (
        ["F0"] * (2 * (p - r - 1)),
        ["F0", "F1"] * (r + 1),
        ["I1", "W1", "F1"] * (p - r - 1),
        ["F0", "I1", "W1", "F1", "I0", "W0"] * (num_microbatches - 2 * p + r + 1),
        ["I1", "W1", "F1", "I0", "W0"] * (p - r - 1),
        *([f"I{chunk}", f"W{chunk}"] for chunk in whole),
        [f"I{chunk}" for chunk in halves],
        *([weights, "I0"] for weights in put_off[: p - r - 1]),
        put_off[p - r - 1 :],
    )
    yield from _numbered(chain.from_iterable(names), num_microbatches)


def _numbered(names: Iterable[str], num_microbatches: int) -> Iterator[OrderStep]:
    """The steps of these names. The n-th step of a name is of microbatch n; steps of microbatches
    that are not there are left out."""
    done: Counter[str] = Counter()
    for name in names:
        kind, chunk = TWO_CHUNKS[name]
        if done[name] < num_microbatches:
            yield OrderStep(kind, chunk, done[name])
        done[name] += 1


SPLIT: tuple[Kind, ...] = ("F", "I", "W")
TWO_CHUNKS = {f"{kind}{chunk}": (kind, chunk) for kind in SPLIT for chunk in (0, 1)}
"""Steps of a rank with two chunks: kind and chunk."""
