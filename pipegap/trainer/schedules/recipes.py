"""The schedules that can be chosen: the keywords of each function are its keys in conf/pipeline/.

Each returns the `Schedule` of a training of `num_updates` updates, and raises BadInput for settings
that it does not support.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Annotated, NamedTuple, TypeVar

from annotated_types import Interval

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import MAX_COUNT, Delay, Few
from pipegap.trainer.schedules import operations
from pipegap.trainer.schedules.operations import Schedule

Updates = Annotated[int, Interval(ge=0, le=MAX_COUNT)] | Annotated[float, Interval(ge=0, le=1)]
"""A number of updates, or, if a float, a share of all updates."""

Recipe = TypeVar("Recipe", bound=Callable[..., Schedule])


class Rival(NamedTuple):
    """A synchronous pipeline that `advise` compares 2BW with: it waits for the norm of the whole
    gradient before an update, as 2BW does, and fills a part of the bubble of 1F1B."""

    name: str
    paper: str
    """Its number at arXiv. It begins with year and month, so papers sort by their date."""
    forms: Sequence[Mapping[str, int]]
    """The keywords of each of its forms; `advise` compares with the fastest."""


def rival(
    name: str, paper: str, forms: Sequence[Mapping[str, int]] = ({},)
) -> Callable[[Recipe], Recipe]:
    """Declares that `advise` compares 2BW with a schedule; see `Rival`."""

    def declare(recipe: Recipe) -> Recipe:
        recipe.__dict__["rival"] = Rival(name, paper, forms)
        return recipe

    return declare


def rival_of(recipe: Callable[..., Schedule]) -> Rival | None:
    """What a schedule declares for `advise`; None: it is not compared."""
    return getattr(recipe, "rival", None)


@rival("1F1B", "2006.09503")
def sync(num_updates: int, *, num_stages: Few, num_microbatches: Few) -> Schedule:
    """1F1B with one flush per batch (PipeDream-Flush, arXiv 2006.09503): no delay."""
    return Schedule(
        num_updates,
        num_microbatches,
        lags=(0,) * num_stages,
        order=operations.one_forward_one_backward,
        flushes=True,
        first_delayed=0,
        first_cooldown=num_updates,
    )


def gpipe(num_updates: int, *, num_stages: Few, num_microbatches: Few) -> Schedule:
    """All forwards, all backwards, one flush per batch (arXiv 1811.06965): no delay."""
    flushed = sync(num_updates, num_stages=num_stages, num_microbatches=num_microbatches)
    return replace(flushed, order=operations.forwards_first)


@rival("ZB-H1", "2401.10241")
def zero_bubble_h1(num_updates: int, *, num_stages: Few, num_microbatches: Few) -> Schedule:
    """ZB-H1 (arXiv 2401.10241): 1F1B whose weight gradients fill a part of the bubble: no delay."""
    flushed = sync(num_updates, num_stages=num_stages, num_microbatches=num_microbatches)
    return replace(flushed, order=operations.zero_bubble_h1)


@rival("interleaved 1F1B", "2104.04473", [{"num_chunks": num} for num in range(2, 17)])
def interleaved_1f1b(
    num_updates: int, *, num_stages: Few, num_chunks: Few, num_microbatches: Few
) -> Schedule:
    """Interleaved 1F1B (arXiv 2104.04473): `num_chunks` parts of the model per rank: no delay."""
    if num_microbatches % num_stages:
        allowed = f"interleaved 1F1B needs a multiple of num_stages={num_stages}"
        raise BadInput("pipeline.num_microbatches", num_microbatches, allowed)
    parts = num_stages * num_chunks
    flushed = sync(num_updates, num_stages=parts, num_microbatches=num_microbatches)
    return replace(flushed, order=operations.interleaved, num_chunks=num_chunks)


@rival("ZB-V", "2401.10241")
def zero_bubble_v(num_updates: int, *, num_stages: Few, num_microbatches: Few) -> Schedule:
    """ZB-V (arXiv 2401.10241): rank r of p holds parts r and 2p − 1 − r of the model, whose 2p
    parts go down the ranks and up again, and its weight gradients fill the bubble: no delay.

    Every rank keeps the activations of p whole microbatches at most, as rank 0 of 1F1B does. The
    only bubble that remains is the wait for the norm of the whole gradient.
    """
    flushed = sync(num_updates, num_stages=2 * num_stages, num_microbatches=num_microbatches)
    return replace(
        flushed, order=operations.zero_bubble_v, num_chunks=2, placement=operations.in_a_v
    )


@rival("DualPipeV", "2412.19437")
def dualpipe_v(num_updates: int, *, num_stages: Few, num_microbatches: Few) -> Schedule:
    """DualPipeV (DeepSeek's DualPipe, arXiv 2412.19437, cut in half): parts of the model as in
    ZB-V, forwards and backwards in pairs: no delay. Raises BadInput if m < 2p.

    A rank runs one operation at a time, so a pair takes as long as its two. If an input half takes
    as long as a forward of a part, F, and a weight half W ≤ F, each rank idles for (p − 1)(2F − W)
    per batch; if all three are equal, no longer than in ZB-V. That is (p − 1) F less than the
    paper's (p − 1)(F&B + B − 3W) with F&B = F + B, because here a result is sent before its pair
    ends. Our numbers do not contain the gain of a pair whose two operations overlap. Every rank
    keeps the activations of p + 1/2 whole microbatches at most.
    """
    if num_microbatches < 2 * num_stages:
        allowed = f"DualPipeV needs at least 2 * num_stages = {2 * num_stages}"
        raise BadInput("pipeline.num_microbatches", num_microbatches, allowed)
    in_a_v = zero_bubble_v(num_updates, num_stages=num_stages, num_microbatches=num_microbatches)
    return replace(in_a_v, order=operations.dualpipe_v)


def pipedream_2bw(
    num_updates: int,
    *,
    num_stages: Few,
    num_microbatches: Few,
    synchronous_start: Updates,
    synchronous_cooldown: Updates,
    slack: bool = False,
) -> Schedule:
    """PipeDream-2BW (arXiv 2006.09503): no flush, every stage reads version t − 1.

    Two versions suffice if and only if a rank has no more forwards ahead of its backwards than a
    batch has microbatches: m ≥ p − 1, and m ≥ 2 (p − 1) with `slack` for messages. Raises BadInput
    otherwise. Slack changes no number; rank 0 keeps up to p − 1 more microbatches of activations.
    """
    num_ahead = (2 if slack else 1) * (num_stages - 1)
    if num_microbatches < num_ahead:
        times = "2 * (num_stages - 1)" if slack else "num_stages - 1"
        needs = f"needs at least {times} = {num_ahead} ({num_ahead + 1} or more recommended)"
        allowed = f"2BW{' with slack' * slack} {needs}"  # a bool counts as 0 or 1
        raise BadInput("pipeline.num_microbatches", num_microbatches, allowed)
    lags, phases = [1] * num_stages, (synchronous_start, synchronous_cooldown)
    schedule = _delayed(num_updates, lags, num_microbatches, *phases)
    return replace(schedule, order=operations.with_slack) if slack else schedule


def pipedream(
    num_updates: int,
    *,
    num_stages: Few,
    num_microbatches: Few,
    synchronous_start: Updates,
    synchronous_cooldown: Updates,
) -> Schedule:
    """PipeDream with weight stashing (arXiv 1806.03377): stage s lags ceil((p − 1 − s) / m)."""
    lags = _depths(num_stages, num_microbatches)
    return _delayed(num_updates, lags, num_microbatches, synchronous_start, synchronous_cooldown)


def _depths(num_stages: int, num_microbatches: int) -> list[int]:
    # Microbatches that are past a stage and not yet back, rounded up to batches.
    return [ceil((num_stages - 1 - stage) / num_microbatches) for stage in range(num_stages)]


def paci(
    num_updates: int,
    *,
    num_stages: Few,
    num_microbatches: Few,
    synchronous_start: Updates,
    synchronous_cooldown: Updates,
    recompute: bool = False,
) -> Schedule:
    """PACI (arXiv 2606.07881): no flush and no stashing, one version of each weight.

    In 1F1B the first p − 1 − s microbatches of a batch have passed stage s when the stage is
    updated: their forwards read the weights before the update, their backwards those after it. With
    m ≥ p − 1 no microbatch crosses more than one update, and a share (p − 1 − s) / m of each batch
    crosses one. That is the rule of the public code (github.com/ItayElam/PACI, commit 3e45e71,
    `DistPACI/Workers.py`) while every stage is full. In that code a forward that had to wait may
    read newer weights, and ranks do not wait for the norm of the whole gradient; here they do.

    With `recompute`, the code's `PACIMode.mem`, a backward first runs its forward again.
    """
    lags, phases = _depths(num_stages, num_microbatches), (synchronous_start, synchronous_cooldown)
    schedule = _delayed(num_updates, lags, num_microbatches, *phases)
    return replace(schedule, in_place=True, recomputes=recompute)


def wpipe(
    num_updates: int,
    *,
    num_stages: Few,
    num_microbatches: Few,
    synchronous_start: Updates,
    synchronous_cooldown: Updates,
) -> Schedule:
    """WPipe (Yang et al., ICLR 2022): half the model reads version t − 1, the other half version t.

    Each rank holds a part of both halves, the groups. The next batch goes forward through the first
    group before this one comes back through it, and so does not see its update. Delays and groups
    are the paper's; the order of microbatches within a group is 1F1B, with a wait for the norm of
    the whole gradient before the second group starts a batch.
    """
    lags = [1] * num_stages + [0] * num_stages  # stages 0 … p − 1 are the first group
    schedule = _delayed(
        num_updates, lags, num_microbatches, synchronous_start, synchronous_cooldown
    )
    order = partial(operations.two_groups, per_batch=num_microbatches)
    return replace(schedule, order=order, num_chunks=2)


def constant_delay(
    num_updates: int,
    *,
    delay: Delay,
    num_stages: Few,
    num_microbatches: Few,
    synchronous_start: Updates,
    synchronous_cooldown: Updates,
) -> Schedule:
    """Every stage reads version t − τ, as in the paper's theory of a constant delay.

    It flushes after every batch: the delay is imposed, and no pipeline causes it.
    """
    lags, phases = [delay] * num_stages, (synchronous_start, synchronous_cooldown)
    schedule = _delayed(num_updates, lags, num_microbatches, *phases)
    return replace(schedule, flushes=True)


def _delayed(
    num_updates: int, lags: Sequence[int], num_microbatches: int, start: float, cooldown: float
) -> Schedule:
    """1F1B without flushes, whose stage s lags by `lags[s]` between synchronous start and cooldown.

    `start` and `cooldown` are the `Updates` of these two phases.
    """
    first_delayed, num_cooldown = (  # 1 is one update, 1.0 all of them
        share if isinstance(share, int) else round(share * num_updates)
        for share in (start, cooldown)
    )
    if first_delayed + num_cooldown > num_updates:
        allowed = f"at most num_updates={num_updates} (an int counts updates, a float is a share)"
        keys = "pipeline.synchronous_start + pipeline.synchronous_cooldown"
        raise BadInput(keys, first_delayed + num_cooldown, allowed)
    return Schedule(
        num_updates,
        num_microbatches,
        tuple(lags),
        operations.one_forward_one_backward,
        flushes=False,
        first_delayed=first_delayed,
        first_cooldown=num_updates - num_cooldown,
    )
