"""The lines of a plan on its models: how large they are, what a rank holds, how they are cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from analysis.table.text import some
from sweeps.request.expand import Trial
from trainer.base.build import build
from trainer.base.errors import BadInput
from trainer.config.names import names
from trainer.config.plan import Plan
from trainer.models.recipe import Recipe

EVEN = 0.8
"""Of the speed-up of p equal ranks: below it a plan says how the model is cut."""
MOST_RANKS, NEARLY = 64, 0.99
"""Ranks that a plan tries; the share of the best speed-up that is as good as it."""


def sizes(trials: Sequence[Trial]) -> Iterator[str]:
    """Parameters of the distinct models, the memory of a rank, and cuts that scale badly."""
    distinct = {(t.plan.num_parameters, t.plan.num_active_parameters): t for t in trials}
    models = [
        f"{names(trial.config)['model']} {_words(trial.plan)}, {_most(trial.config)}"
        for trial in distinct.values()
    ]
    yield f"models    {some(models)}"
    most = max(trial.plan.memory_bytes for trial in trials)
    loss = in_bytes(max(trial.plan.loss_bytes for trial in trials))
    yield (
        f"memory    up to {in_bytes(most)} per rank of weights, gradients and states, and {loss} "
        "in the loss of a microbatch; other activations aside"
    )
    yield from dict.fromkeys(_cut(trial.plan) for trial in trials if _is_uneven(trial.plan))


def in_bytes(number: float) -> str:
    """A number of bytes with three digits, in the unit that suits it."""
    for name in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {name}"
        number /= 1000
    return f"{number:.3g} TB"


def _words(plan: Plan) -> str:
    of_all = f"{plan.num_parameters:,} parameters"
    if plan.num_active_parameters == plan.num_parameters:
        return of_all
    return f"{of_all}, {plan.num_active_parameters:,} active per token"


def _most(config: Mapping[str, Any]) -> str:
    """Where layers run out: the speed-up that no number of ranks exceeds, a stage for each."""
    model: Recipe = build(config["model"])
    speed_ups: dict[int, float] = {}
    with suppress(BadInput):  # more stages than layers
        for p in range(1, MOST_RANKS + 1):
            split = model.split(p, config["seq_len"])
            speed_ups[p] = _over_slowest(model.work(split, config["seq_len"]))
    most = max(speed_ups.values())
    enough = next(p for p, speed_up in speed_ups.items() if speed_up > NEARLY * most)
    return f"{most:.3g} times as fast on {enough} ranks as on one, and on more no faster"


def _over_slowest(work: Sequence[float]) -> float:
    return sum(work) / max(work)


def _speed_up(plan: Plan) -> float:
    """How much faster than one rank those of the plan are at most: all work over the slowest's."""
    return _over_slowest(plan.work_by_rank)


def _is_uneven(plan: Plan) -> bool:
    return _speed_up(plan) < EVEN * len(plan.work_by_rank)


def _cut(plan: Plan) -> str:
    layers = ", ".join(map(str, plan.layers_by_stage))
    found = (
        f"split     stages of {layers} layers: {len(plan.work_by_rank)} ranks are at most "
        f"{_speed_up(plan):.3g} times as fast as one"
    )
    return found + ("; so are more: the head alone is the slowest" * _is_head_alone(plan))


def _is_head_alone(plan: Plan) -> bool:
    """Whether the slowest rank has nothing but the head."""
    has_one_stage = len(plan.work_by_rank) == len(plan.layers_by_stage)
    is_slowest = plan.work_by_rank[-1] == max(plan.work_by_rank)
    return has_one_stage and is_slowest and plan.layers_by_stage[-1] == 0
