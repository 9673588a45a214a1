"""The delayed run against a synchronous pipeline after the same time.

Losses are final losses of runs of the lengths that take the same time. Where there are no such
runs, others stand in (see `statistics.tax`): those that end no lower, or those that end no
higher. A comparison that favours one side may only decide for the other one.
"""

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import NamedTuple

import numpy as np

from pipegap.analysis.advice.evidence import Evidence
from pipegap.analysis.statistics.intervals import (
    Interval,
    Values,
    folds_share,
    mean_interval,
    quantile,
    shared_confidence,
)
from pipegap.analysis.statistics.tax import StandIn, no_higher, no_lower

ENOUGH_SEEDS = 3
"""Runs of fewer seeds are compared only where no others are: the interval of a difference of two
seeds is four times as wide as that of three."""
NEARLY = 1e-6
"""Updates: the rounding error of a ratio of two simulated times."""
ChooseStandIn = Callable[[Collection[int], float], StandIn]
"""Lengths and a number of updates → the runs of these lengths that stand in for it."""


@dataclass(frozen=True)
class SameTime:
    """The delayed run and sync after numbers of updates that take the same time."""

    arm: str
    """The delayed arm: of several the best on all seeds, though each seed is compared at the one
    that is best on the others."""
    speed_up: float
    updates: float
    """Of the delayed run."""
    sync_updates: float
    lengths: tuple[int, ...]
    """Of the delayed runs that are compared; none if no runs can be."""
    sync_lengths: tuple[int, ...]
    excess: float
    """By how many updates the delayed runs that are compared are longer, on the mean, than the time
    of sync's allows: negative if they are shorter, and NaN without runs. It counts as 0 if it is
    less than one update of each side, since lengths are whole numbers."""
    n: int
    """Seeds at which both sides have these runs, and neither diverged."""
    gap: float
    """Loss of the delayed run minus that of sync, mean over n seeds; NaN without any."""
    loss: float
    """Loss of the delayed run, mean over these seeds."""
    spread: float
    """Standard deviation that a 95 % interval of this width is made with: that of the n
    differences, wider where several arms or settings might have been compared."""
    interval: Interval
    diverged: int
    """Seeds that are left out because the delayed run diverged and sync's did not."""
    sync_diverged: int
    """Seeds that are left out because sync's run diverged and the delayed one did not."""

    @property
    def is_lower(self) -> bool:
        """Whether the delayed loss is shown to be lower than sync's."""
        return self.interval[1] < 0 and not self.diverged

    @property
    def is_higher(self) -> bool:
        """Whether it is shown to be higher."""
        return self.interval[0] > 0 and not self.sync_diverged

    @property
    def is_interpolated(self) -> bool:
        """Whether a loss between runs of two lengths is compared."""
        return len(self.lengths) > 1 or len(self.sync_lengths) > 1

    @property
    def needed(self) -> list[int]:
        """Whole numbers of updates of runs that compare sync and the delayed run."""
        return [floor(self.sync_updates + NEARLY), ceil(self.updates - NEARLY)]

    @property
    def runs(self) -> str:
        """The runs that are compared, in words."""
        lengths, sync_lengths = (
            " and ".join(f"{length:,}" for length in of_side)
            for of_side in (self.lengths, self.sync_lengths)
        )
        between = "between " if self.is_interpolated else ""
        side = "fewer" if self.excess < 0 else "more"
        allowed = f", {side} than the time allows" if self.excess else ""
        return f"{between}{lengths} against {sync_lengths} updates{allowed}"


class Distance(NamedTuple):
    """How far runs are from taking the same time; the smallest is the nearest."""

    ratio: float
    """Logarithm of the ratio of the two times; infinite if no runs stand in."""
    num_lengths: int


@dataclass(frozen=True)
class BothSides:
    """What stands in for the runs of both sides, on the delayed one by arm."""

    distance: Distance
    updates: float
    sync_updates: float
    sync: StandIn
    delayed: dict[str, StandIn]

    def num_seeds(self, evidence: Evidence) -> int:
        """The number of seeds that have these runs on both sides, whatever became of them."""
        return sum(
            not np.isnan(self.sync.loss(losses))
            and any(
                not np.isnan(stand_in.loss(evidence.finals[arm].get(seed, {})))
                for arm, stand_in in self.delayed.items()
            )
            for seed, losses in evidence.finals["sync"].items()
        )


def pessimistic(evidence: Evidence, arms: Sequence[str], speed_up: float) -> SameTime:
    """The comparison that favours sync, where it favours a side: it may decide for the delay."""
    return _compared(evidence, arms, speed_up, _nearest(evidence, arms, speed_up, *FOR_SYNC))


def optimistic(evidence: Evidence, arms: Sequence[str], speed_up: float) -> SameTime:
    """The comparison that favours the delay, where it favours a side: it may decide for sync."""
    return _compared(evidence, arms, speed_up, _nearest(evidence, arms, speed_up, *FOR_DELAY))


FOR_SYNC, FOR_DELAY = (no_lower, no_higher), (no_higher, no_lower)
"""What stands in for runs of the delay and of sync, in a comparison that favours this side."""


def nearest_length(by_length: Sequence[Evidence], least: float, most: float) -> Evidence:
    """The length of training at which runs come nearest to the same time, of `by_length`, which is
    not empty and begins with the longest.

    `least`, `most`: the speed-up at which a verdict for the delay and one for sync must hold. The
    runs that may decide for the delay count first, then those that may decide for sync; among equal
    ones the most seeds, then the longest. Only lengths and seeds choose: to take the first length
    that decides would be one more try at 5 % for each length.
    """

    def rank(evidence: Evidence) -> tuple[bool, int, float, float, int]:
        arms = [gap.arm for gap in evidence.gaps]
        for_sync = _nearest(evidence, arms, least, *FOR_SYNC)
        for_delay = _nearest(evidence, arms, most, *FOR_DELAY)
        num_seeds = for_sync.num_seeds(evidence)
        return (
            not evidence.decides,
            -min(num_seeds, ENOUGH_SEEDS),
            for_sync.distance.ratio,
            for_delay.distance.ratio,
            -num_seeds,
        )

    return min(by_length, key=rank)


def compared(evidence: Evidence, arm: str, speed_ups: Iterable[float]) -> list[int]:
    """The lengths of the arm's runs that are compared with sync's: as many updates as sync makes,
    and those that stand in for what each speed-up allows."""
    lengths = {evidence.updates}
    lengths_there = {length for losses in evidence.finals[arm].values() for length in losses}
    for updates in (evidence.updates * speed_up for speed_up in speed_ups):
        lengths |= {
            *no_lower(lengths_there, updates).weights,
            *no_higher(lengths_there, updates).weights,
        }
    return sorted(lengths)


def _nearest(
    evidence: Evidence,
    arms: Sequence[str],
    speed_up: float,
    of_delayed: ChooseStandIn,
    of_sync: ChooseStandIn,
) -> BothSides:
    """Delayed runs longer by the speed-up, or sync runs shorter by it, whichever the runs are
    nearer to; of several arms those whose runs are nearest.

    What is compared depends on the lengths of the runs alone and not on their losses: taking what
    shows more would decide too often. Runs of the very length come before an interpolation.
    """
    whole = float(evidence.updates)
    options = []
    for updates, sync_updates in ((whole * speed_up, whole), (whole, whole / speed_up)):
        sync = of_sync(_lengths(evidence, "sync"), sync_updates)
        stands = {arm: of_delayed(_lengths(evidence, arm), updates) for arm in arms}
        away = {arm: _distance(stand, sync, speed_up) for arm, stand in stands.items()}
        least = min(away.values())
        nearest_arms = {arm: stand for arm, stand in stands.items() if away[arm] == least}
        options.append(BothSides(least, updates, sync_updates, sync, nearest_arms))
    return min(options, key=lambda option: option.distance)


def _lengths(evidence: Evidence, arm: str) -> list[int]:
    """The lengths of an arm's runs at ENOUGH_SEEDS seeds of sync, or at two if sync has no more at
    `evidence.updates`: one seed has no interval."""
    sync, by_seed = evidence.finals["sync"], evidence.finals[arm]
    num_seeds = sum(evidence.updates in losses for losses in sync.values())
    runs = [length for seed in sync for length in by_seed.get(seed, ())]
    least = max(2, min(num_seeds, ENOUGH_SEEDS))
    return sorted({length for length in runs if runs.count(length) >= least})


def _excess(stand: StandIn, sync: StandIn, speed_up: float) -> float:
    """See `SameTime.excess`."""
    excess = stand.updates - sync.updates * speed_up
    return 0.0 if abs(excess) < 1 + speed_up else excess


def _distance(stand: StandIn, sync: StandIn, speed_up: float) -> Distance:
    excess = _excess(stand, sync, speed_up)
    if np.isnan(excess):
        return Distance(inf, 0)
    ratio = round(abs(float(np.log(1 + excess / (sync.updates * speed_up)))), 9)
    return Distance(ratio, len(stand.weights) + len(sync.weights))


def _compared(
    evidence: Evidence, arms: Sequence[str], speed_up: float, runs: BothSides
) -> SameTime:
    """The comparison over seeds, each with the arm of the lowest mean loss on the other seeds.

    The interval allows for the choice among all `arms`, also among those without such runs: people
    train longer what they saw to be best.
    """
    delayed_arms = [*runs.delayed]
    sync_losses = evidence.finals["sync"]
    arms_of_seeds = {seed: _best_without(evidence, delayed_arms, {seed}) for seed in sync_losses}
    losses = np.array(
        [
            runs.delayed[arm].loss(evidence.finals[arm].get(seed, {}))
            for seed, arm in arms_of_seeds.items()
        ]
    )
    gaps = losses - np.array([runs.sync.loss(of_seed) for of_seed in sync_losses.values()])
    is_finite = np.isfinite(gaps)
    finite_gaps = gaps[is_finite]
    mean, spread, interval = _mean(finite_gaps, len(arms) > 1, evidence.num_settings)
    stand = runs.delayed[delayed_arms[0]]
    return SameTime(
        arm=_best_without(evidence, delayed_arms, set()),
        speed_up=speed_up,
        updates=runs.updates,
        sync_updates=runs.sync_updates,
        lengths=tuple(sorted({x for of_arm in runs.delayed.values() for x in of_arm.weights})),
        sync_lengths=tuple(sorted(runs.sync.weights)),
        excess=_excess(stand, runs.sync, speed_up),
        n=len(finite_gaps),
        gap=mean,
        loss=float(losses[is_finite].mean()) if is_finite.any() else np.nan,
        spread=spread,
        interval=interval,
        diverged=int(np.isposinf(gaps).sum()),
        sync_diverged=int(np.isneginf(gaps).sum()),
    )


def _mean(gaps: Values, is_held_out: bool, num_settings: int) -> tuple[float, float, Interval]:
    """Mean, standard deviation and interval: wider if each seed has what is best on the others, and
    of a confidence that lets the best of `num_settings` on the same seeds err in one of twenty."""
    n = len(gaps)
    if not n:
        return np.nan, np.nan, (np.nan, np.nan)
    confidence = shared_confidence(num_settings)
    wider = np.sqrt(folds_share(n)) if is_held_out else 1.0
    low, high = mean_interval(gaps, confidence)
    mean, half = float(gaps.mean()), wider * (high - low) / 2
    wider *= quantile(n, confidence) / quantile(n)
    spread = float(wider * gaps.std(ddof=1)) if n > 1 else np.nan
    return mean, spread, (mean - half, mean + half)


def _best_without(evidence: Evidence, arms: Sequence[str], seeds: Set[int]) -> str:
    """The arm of the lowest mean loss at `evidence.updates` on all seeds but these."""
    if len(arms) == 1:
        return arms[0]
    finals = [evidence.finals[arm] for arm in arms]
    seeds_of_arms = (
        {s for s, losses in by_seed.items() if evidence.updates in losses} for by_seed in finals
    )
    other_seeds = set.intersection(*seeds_of_arms) - seeds
    sums = [sum(by_seed[s][evidence.updates] for s in other_seeds) for by_seed in finals]
    return arms[int(np.argmin(sums))]
