"""The delayed run against a synchronous pipeline after the same time.

Losses are final losses of runs of the given length, or interpolated between two such runs (see
`statistics.lengths`). An interpolated loss is a little too high, which favours the other side, so
it may only decide against that other side.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from analysis.advice.evidence import Evidence
from analysis.statistics.intervals import Interval, folds_share, mean_interval
from analysis.statistics.lengths import loss_after
from analysis.statistics.tax import Finals

NEARLY = 1e-6
"""Updates: the rounding error of a ratio of two simulated times."""


@dataclass(frozen=True)
class SameTime:
    """The delayed run and sync after numbers of updates that take the same time."""

    updates: float
    """Of the delayed run."""
    sync_updates: float
    pairs: int
    """Seeds at which both sides have runs of these lengths."""
    n: int
    """Those at which neither diverged."""
    gap: float
    """Loss of the delayed run minus that of sync, mean over n seeds; NaN without any."""
    spread: float
    """Standard deviation that the interval is made with: that of the n differences, wider where
    each seed has the arm that is best on the others."""
    interval: Interval
    flatters_delay: bool
    """Whether sync's losses are interpolated between runs of other lengths, or a delayed run is
    left out that diverged."""
    flatters_sync: bool
    """Whether the delayed losses are interpolated, or a run of sync is left out."""

    @property
    def is_lower(self) -> bool:
        """Whether the delayed loss is shown to be lower than sync's."""
        return self.interval[1] < 0 and not self.flatters_delay

    @property
    def is_higher(self) -> bool:
        """Whether it is shown to be higher."""
        return self.interval[0] > 0 and not self.flatters_sync

    @property
    def is_interpolated(self) -> bool:
        """Whether either side is not of all runs of that length."""
        return self.flatters_delay or self.flatters_sync

    @property
    def lengths(self) -> list[int]:
        """Whole numbers of updates of runs that compare sync and the delayed run."""
        return [floor(self.sync_updates + NEARLY), ceil(self.updates - NEARLY)]


def same_time(evidence: Evidence, arms: Sequence[str], speed_up: float) -> SameTime:
    """Delayed runs longer by the speed-up, or sync runs shorter by it where there are none so long.

    Which of the two is compared depends on the lengths of the runs alone and not on their losses:
    taking the one that shows more would decide too often. Runs of the very length come before an
    interpolation, longer delayed runs before shorter sync ones. `arms`: as in `after`.
    """
    longer = after(evidence, arms, evidence.updates * speed_up, evidence.updates)
    shorter = after(evidence, arms, evidence.updates, evidence.updates / speed_up)
    return max(longer, shorter, key=lambda at: (at.pairs >= 2, not at.is_interpolated, at.pairs))


def compared(evidence: Evidence, arm: str, speed_ups: Iterable[float]) -> list[int]:
    """The lengths of the arm's runs that are compared with sync's: as many updates as sync makes,
    and those next to what each speed-up allows."""
    known = {length for losses in evidence.finals[arm].values() for length in losses}
    lengths = {evidence.updates}
    for target in (evidence.updates * speed_up for speed_up in speed_ups):
        lengths |= {max((length for length in known if length < target + 1), default=0)}
        lengths |= {min((length for length in known if length > target - 1), default=0)}
    return sorted(lengths - {0})


def after(evidence: Evidence, arms: Sequence[str], updates: float, sync_updates: float) -> SameTime:
    """The delayed run after `updates`, at each seed with the arm of the lowest mean loss on the
    other seeds, and sync after `sync_updates`."""
    sync = evidence.finals["sync"]
    gaps = np.array(
        [
            loss_after(evidence.finals[arm][seed], round(updates, 6))
            - loss_after(losses, round(sync_updates, 6))
            for seed, losses in sync.items()
            for arm in [_best_without(evidence, arms, seed)]
            if seed in evidence.finals[arm]
        ]
    )
    known = gaps[np.isfinite(gaps)]  # infinite where the delay diverged, or, below 0, sync
    low, high = mean_interval(known)
    wider = np.sqrt(folds_share(len(known))) if len(arms) > 1 else 1.0
    mean = float(known.mean()) if len(known) else np.nan
    return SameTime(
        updates,
        sync_updates,
        int((~np.isnan(gaps)).sum()),
        len(known),
        mean,
        float(wider * known.std(ddof=1)) if len(known) > 1 else np.nan,
        (mean - wider * (high - low) / 2, mean + wider * (high - low) / 2),
        bool(np.isposinf(gaps).any()) or not _has(sync, sync_updates),
        bool(np.isneginf(gaps).any())
        or not any(_has(evidence.finals[arm], updates) for arm in arms),
    )


def _best_without(evidence: Evidence, arms: Sequence[str], seed: int) -> str:
    """The arm of the lowest mean loss at `evidence.updates` on the seeds but this one."""
    if len(arms) == 1:
        return arms[0]
    finals = [evidence.finals[arm] for arm in arms]
    known = (
        {s for s, losses in by_seed.items() if evidence.updates in losses} for by_seed in finals
    )
    others = set.intersection(*known) - {seed}
    means = [np.mean([by_seed[s][evidence.updates] for s in others]) for by_seed in finals]
    return arms[int(np.argmin(means))]


def _has(finals: Finals, updates: float) -> bool:
    """Whether there are runs of that length, to within one update."""
    return any(abs(length - updates) < 1 for losses in finals.values() for length in losses)
