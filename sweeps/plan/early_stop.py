"""Leaves out the points whose sync arm alone ends far above the best, before their arms run.

With `early_stop: {margin: m}` in a sweep, the sync arm is trained to its end at the first seed, at
every point. A point whose loss ends more than m nats per token above the lowest, or that diverged,
is not run further, at any seed: the arms of a pair are never stopped independently. Losses are
compared within the same model, data, context and optimizer, so that no optimizer is left out
because another one is better.
The store alone decides all this: a sweep that was killed makes the same decisions when it resumes.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeps.plan.tried import Choice
from sweeps.request.expand import Trial
from sweeps.request.schema import Sweep
from trainer.base.build import label
from trainer.store.snapshot import Snapshot


@dataclass(frozen=True)
class JudgedPoint:
    """A point, and whether early stopping leaves it out."""

    choice: Choice
    first: list[Trial]
    """The sync trial of the first seed, which decides. Empty without early stopping, until tuning
    is settled, and if it left the point out."""
    settled: bool
    stopped: str | None
    """Why the point does not run further; None if it does, or may."""

    @property
    def arms(self) -> list[Trial]:
        """The trials of all arms and seeds; none if the point is stopped."""
        return [] if self.stopped else self.choice.arms

    @property
    def runnable(self) -> list[Trial]:
        """The trials that can run now."""
        return [*self.choice.choosing, *self.first, *(self.arms if self.settled else [])]

    @property
    def planned(self) -> list[Trial]:
        """All trials, as far as they are known."""
        judged = self.first if self.stopped else []  # else it is among the arms
        return [*self.choice.choosing, *judged, *self.arms]


def judge(sweep: Sweep, choices: Sequence[Choice], seen: Snapshot) -> list[JudgedPoint]:
    """Return every point of the sweep, judged by the results that the store has."""
    if sweep.early_stop is None:
        return [JudgedPoint(choice, [], choice.settled, None) for choice in choices]
    groups: dict[str, list[Choice]] = {}
    for choice in choices:
        groups.setdefault(_group(choice), []).append(choice)
    best = {key: _best(group, seen) for key, group in groups.items()}
    margin = sweep.early_stop.margin
    return [_judged(choice, best[_group(choice)], margin, seen) for choice in choices]


def estimate(sweep: Sweep, points: Sequence[JudgedPoint]) -> list[str]:
    """Return lines on what a plan cannot know yet."""
    num_open = sum(not point.settled for point in points)
    if sweep.early_stop is None or not num_open:
        return []
    return [f"stop      {num_open} of {len(points)} points are not judged yet: all arms are priced"]


def remarks(sweep: Sweep, points: Sequence[JudgedPoint]) -> list[str]:
    """Return the rule, then one line per point that is left out; nothing without early stopping."""
    if sweep.early_stop is None:
        return []
    rule = (
        f"early stop: a point is left out, in every arm, if its sync arm at seed {sweep.seeds[0]} "
        f"diverges or ends more than {sweep.early_stop.margin:g} nats above the best point of its "
        "optimizer, model and data"
    )
    left_out = [
        f"{' '.join(point.choice.point.overrides)} is left out: {point.stopped}"
        for point in points
        if point.stopped
    ]
    return [rule, *left_out]


def _first(choice: Choice) -> list[Trial]:
    """Return the sync trial of the first seed, once the choice is settled."""
    sync = [trial for trial in choice.arms if trial.arm == "sync"]
    return sync[:1] if choice.settled else []


def _group(choice: Choice) -> str:
    """Return optimizer, model, data and context as text: points of equal text are compared."""
    config: Mapping[str, Any] = choice.point.configs["sync"]
    comparable = [config[key] for key in ("model", "data", "seq_len")]
    return json.dumps([label(config["optimizer"]), *comparable], sort_keys=True)


def _best(group: Sequence[Choice], seen: Snapshot) -> float | None:
    """Return the lowest loss of a group; infinite if all of its points diverged.

    None, so that nothing is decided, while a point of the group has to run.
    """
    losses = [seen.final_loss(trial) for choice in group for trial in _first(choice)]
    if None in losses or not all(choice.settled for choice in group):
        return None
    return min((loss for loss in losses if loss is not None), default=math.inf)


def _judged(choice: Choice, best: float | None, margin: float, seen: Snapshot) -> JudgedPoint:
    first = _first(choice)
    if best is None:
        return JudgedPoint(choice, first, settled=False, stopped=None)
    losses = [loss for trial in first if (loss := seen.final_loss(trial)) is not None]
    stopped = _why(losses[0], best, margin) if losses else None
    return JudgedPoint(choice, first, settled=True, stopped=stopped)


def _why(own: float, best: float, margin: float) -> str | None:
    """Return why a point with the loss `own` is left out; None if it is not."""
    if own == math.inf:
        return "its sync arm diverged"
    if own > best + margin:
        return f"its sync arm ended at {own:.4f}, the best at {best:.4f}"
    return None
