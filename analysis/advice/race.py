"""The delayed run against a synchronous pipeline: at the same time, and at the same loss.

Lengths of training are compared by runs that were that long, each with its own learning-rate
schedule, or between two of them; never beyond. A loss in the middle of a run is not that of a run
so short: its learning rate has not decayed, or has stayed high for longer.

Final losses fall ever more slowly with the logarithm of the length, so a line between two of them
lies above: it flatters the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from analysis.advice.evidence import Evidence, Gap
from analysis.advice.same_loss import ByUpdates, length_to, loss_after, updates_to
from analysis.intervals import Interval, mean_interval

BOOTSTRAP_SEED = 0
NEARLY = 1e-6
"""Updates: what a ratio of two simulated times may be off by."""


@dataclass(frozen=True)
class SameTime:
    """The delayed run and sync after numbers of updates that take the same time."""

    updates: float
    """Of the delayed run."""
    sync_updates: float
    n: int
    gap: float
    """Loss of the delayed run minus sync's, mean over n seeds; NaN if no runs are that long."""
    spread: float
    """Standard deviation of the n differences."""
    interval: Interval
    flatters_delay: bool
    """Sync's losses lie between runs of other lengths, on a line."""
    flatters_sync: bool
    """The delayed run's do."""

    @property
    def is_lower(self) -> bool:
        """Whether the delayed loss is shown to be lower than sync's."""
        return self.interval[1] < 0 and not self.flatters_delay

    @property
    def is_higher(self) -> bool:
        """Whether it is shown to be higher."""
        return self.interval[0] > 0 and not self.flatters_sync

    @property
    def lengths(self) -> list[int]:
        """Whole numbers of updates of runs that compare sync and the delayed run."""
        return [floor(self.sync_updates + NEARLY), ceil(self.updates - NEARLY)]


@dataclass(frozen=True)
class SameLoss:
    """After how many updates each of the two has the same loss, by means over seeds; NaN if nobody
    knows."""

    loss: float
    updates: float
    sync_updates: float
    measured: bool
    """By runs of that length; else by where sync's own curve had that loss, a rough guide."""


def same_time(found: Evidence, gap: Gap, speed_up: float) -> SameTime:
    """Delayed runs longer by the speed-up, or sync runs shorter by it: what shows more."""
    longer = _same_time(found, gap.arm, found.updates * speed_up, found.updates)
    shorter = _same_time(found, gap.arm, found.updates, found.updates / speed_up)
    return max(longer, shorter, key=lambda at: (at.is_lower or at.is_higher, at.n))


def _same_time(found: Evidence, arm: str, updates: float, sync_updates: float) -> SameTime:
    delayed, sync = found.finals[arm], found.finals["sync"]
    gaps = np.array(
        [
            loss_after(delayed[seed], round(updates, 6))
            - loss_after(losses, round(sync_updates, 6))
            for seed, losses in sync.items()
            if seed in delayed
        ]
    )
    known = gaps[np.isfinite(gaps)]
    return SameTime(
        updates,
        sync_updates,
        len(known),
        float(known.mean()) if len(known) else np.nan,
        float(known.std(ddof=1)) if len(known) > 1 else np.nan,
        mean_interval(known, np.random.default_rng(BOOTSTRAP_SEED)),
        not _has(sync, sync_updates),
        not _has(delayed, updates),
    )


def _has(finals: Mapping[int, ByUpdates], updates: float) -> bool:
    """Whether there are runs of that length, up to a part of an update."""
    return any(abs(length - updates) < 1 for losses in finals.values() for length in losses)


def same_loss(found: Evidence, gap: Gap) -> SameLoss:
    """At sync's final loss if delayed runs get there; else at that of the delayed run."""
    delayed_loss = found.loss_sync + gap.gap
    finals = _means(found.finals[gap.arm])
    if gap.gap <= 0:
        needed = updates_to(found.curves[gap.arm], found.loss_sync)
        return SameLoss(found.loss_sync, needed, found.updates, True)
    longer = {length: loss for length, loss in finals.items() if length >= found.updates}
    if not np.isnan(needed := length_to(longer, found.loss_sync)):
        return SameLoss(found.loss_sync, needed, found.updates, True)
    sync = _means(found.finals["sync"])
    shorter = {length: loss for length, loss in sync.items() if length <= found.updates}
    if shorter and max(shorter.values()) >= delayed_loss:
        return SameLoss(delayed_loss, found.updates, length_to(shorter, delayed_loss), True)
    guide = updates_to(found.curves["sync"], delayed_loss)
    return SameLoss(delayed_loss, found.updates, guide, False)


def _means(finals: Mapping[int, ByUpdates]) -> dict[float, float]:
    """Final losses by length, of the lengths that every seed of the longest list has."""
    most = max(map(len, finals.values()))
    whole = [losses for losses in finals.values() if len(losses) == most]
    shared = set.intersection(*({*losses} for losses in whole))
    return {length: float(np.mean([losses[length] for losses in whole])) for length in shared}
