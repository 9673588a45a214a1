"""The rule: when to go asynchronous, when to stay synchronous, and when nobody knows yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, isnan
from typing import Any

import numpy as np

from analysis.advice.evidence import Evidence, Gap
from analysis.advice.same_loss import length_to, loss_after, updates_to
from analysis.intervals import Interval, mean_interval

GO, STAY, UNDECIDED = "go asynchronous", "stay synchronous", "not enough data"
BOOTSTRAP_SEED = 0


@dataclass(frozen=True)
class Verdict:
    """One of GO, STAY and UNDECIDED, and why."""

    word: str
    why: str
    settle: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the sweep that would decide it; none if it is decided."""


@dataclass(frozen=True)
class Race:
    """The delayed run against a synchronous pipeline."""

    updates: float
    """Of the delayed run in the time that sync takes for its own."""
    n: int
    gap: float
    """Its loss after these minus sync's, mean over n seeds; NaN if no delayed runs of the setting
    are as long."""
    interval: Interval
    verdict: Verdict

    @property
    def num_updates(self) -> int:
        """`updates` as a whole number, not fewer."""
        return ceil(self.updates - 1e-9)


def recommended(found: Evidence) -> Gap | None:
    """The plain delay, or Error Feedback with the coefficient λ that the store speaks for.

    λ of the smallest mean gap, if the share that it removes of the plain gap has an interval above
    0; else the plain delay, and if that was not run, what has the smallest gap. An arm with fewer
    than two pairs, or that diverged where sync did not, is not recommended; None if no arm is left.
    λ is chosen on the seeds that are compared.
    """
    sound = [gap for gap in found.gaps if gap.n >= 2 and not gap.diverged]
    if not sound:
        return None
    smallest = min(sound, key=lambda gap: gap.gap)
    plain = next((gap for gap in sound if gap.coefficient == 0), smallest)
    return smallest if smallest.removes else plain


def without_gap(found: Evidence | None) -> Verdict:
    """Where no arm can be recommended: stay if the delay diverged where sync did not."""
    gaps = found.gaps if found is not None else ()
    if diverged := [gap for gap in gaps if gap.diverged]:
        counts = ", ".join(f"{gap.arm} in {gap.diverged} of {gap.pairs}" for gap in diverged)
        return Verdict(STAY, f"the delayed runs diverged where sync did not: {counts}")
    num_pairs = max((gap.n for gap in gaps), default=0)
    why = f"a gap has an interval from two pairs of runs on, and there are {num_pairs}"
    return Verdict(UNDECIDED, why, {"seeds": [0, 1, 2]})


def race(found: Evidence, gap: Gap, speed_up: float) -> Race:
    """The two at the same time, seed by seed; between lengths that were run, never beyond."""
    updates = round(found.updates * speed_up, 6)  # of a run that is exactly as long, no less
    finals = found.finals[gap.arm]
    seeds = sorted({*finals} & {*found.sync_finals})
    gaps = np.array([loss_after(finals[seed], updates) - found.sync_finals[seed] for seed in seeds])
    known = gaps[np.isfinite(gaps)]
    at = Race(
        updates,
        len(known),
        float(known.mean()) if len(known) else np.nan,
        mean_interval(known, np.random.default_rng(BOOTSTRAP_SEED)),
        Verdict(UNDECIDED, ""),
    )
    return replace(at, verdict=verdict(gap, at, speed_up, slowdown(found, gap)))


def updates_to_same_loss(found: Evidence, arm: str) -> float:
    """Updates of delayed runs to sync's final loss, by means over seeds: on their own curve where
    they end no higher, else between longer runs; NaN if none was seen to get there."""
    seeds = [losses for seed, losses in found.finals[arm].items() if seed in found.sync_finals]
    lengths = {length for length in seeds[0] if all(length in losses for losses in seeds)}
    means = {length: float(np.mean([losses[length] for losses in seeds])) for length in lengths}
    if means.get(found.updates, np.inf) <= found.loss_sync:
        return updates_to(found.curves[arm], found.loss_sync)
    longer = {length: loss for length, loss in means.items() if length >= found.updates}
    return length_to(longer, found.loss_sync)


def slowdown(found: Evidence, gap: Gap) -> Interval:
    """How many times the updates of sync the delayed run needs at least, at the ends of the gap.

    It ends where sync's curve was after t of its T updates: T / t. A sync run of t updates, its
    learning rate decayed, would have ended lower, so it is more than that. NaN without a curve.
    """
    low, high = (
        found.updates / updates_to(found.sync_curve, found.loss_sync + end) if end > 0 else 1.0
        for end in gap.interval
    )
    return low, high


def verdict(gap: Gap, at: Race, speed_up: float, slower: Interval) -> Verdict:
    """In this order, with 95 % intervals:

    1. 2BW is not faster: stay.
    2. Delayed runs were made that are longer by the speed-up, and so take sync's time: go if the
       interval of their loss minus sync's lies below 0, stay if above, else not enough data.
    3. The interval of the gap after as many updates does not exceed 0: go.
    4. `slowdown` exceeds the speed-up at the lower end of the gap already: stay.
    5. Not enough data: a delayed run longer by the speed-up settles it.
    """
    if speed_up <= 1 + 1e-9:
        return Verdict(STAY, "2BW is no faster here")
    if not isnan(at.interval[0]):
        return _by_time(at)
    if gap.interval[1] <= 0:
        return Verdict(GO, "after as many updates its loss is no higher, and they take less time")
    if slower[0] > speed_up:
        why = f"the same loss takes {slower[0]:.2f} times the updates at least, " + (
            f"in the same time there are {speed_up:.2f} times as many"
        )
        return Verdict(STAY, why)
    why = f"in the same time there are {speed_up:.2f} times the updates, and no delayed run " + (
        "was seen to reach the same loss with these"
    )
    return Verdict(UNDECIDED, why, _length(at))


def _length(at: Race) -> dict[str, Any]:
    return {"num_updates": at.num_updates, "tokens_per_parameter": "null"}


def _by_time(at: Race) -> Verdict:
    low, high = at.interval
    why = (
        f"in the same time its loss is {at.gap:+.4f} [{low:+.4f}, {high:+.4f}] n={at.n} from sync's"
    )
    if low <= 0 <= high:
        return Verdict(UNDECIDED, why, {"seeds": [*range(2 * at.n)], **_length(at)})
    return Verdict(GO if high < 0 else STAY, why)
