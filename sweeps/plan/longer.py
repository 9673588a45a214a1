"""The longer runs that answer whether a pipeline may be asynchronous.

In the time in which a synchronous pipeline makes T updates, PipeDream-2BW makes more. What it gains
is shown by delayed runs of that many updates, against sync's runs of T.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import ceil

from sweeps.request.expand import Trial
from sweeps.request.schema import Question
from trainer.config.plan import Planner
from trainer.config.schema import validate

NEARLY = 1e-6
"""Updates: the rounding error of a simulated ratio."""


@cache
def speed_up(stages: int, microbatches: int) -> float:
    """How many batches 2BW makes in the time of one of the fastest synchronous pipeline that keeps
    no more activations, between equal stages."""
    from analysis.advice.speed import equal_stages, speed_up_over_fastest

    return speed_up_over_fastest(equal_stages(stages), microbatches)


def longer(asked: Question, trials: Iterable[Trial], plan: Planner) -> list[Trial]:
    """Those of the `trials` that are of its arms, longer by the speed-up of its pipeline; none if
    that is 1."""
    factor = speed_up(asked.stages, asked.microbatches)
    return [
        _longer(trial, factor, plan) for trial in trials if trial.arm in asked.arms and factor > 1
    ]


def _longer(trial: Trial, factor: float, plan: Planner) -> Trial:
    num_updates = ceil(trial.plan.num_updates * factor - NEARLY)
    length = {"num_updates": num_updates, "tokens_per_parameter": None}
    config = validate({**trial.config, **length})
    setting = f"{trial.setting} num_updates={num_updates}".strip()
    return Trial(trial.arm, config, plan(config), setting, trial.sweeps)
