"""That a sweep does not contradict itself."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, pairwise
from math import prod
from typing import Any

from pydantic import BaseModel, ValidationError

from sweeps.request.overrides import keys, overrides, refuse_reserved
from sweeps.request.schema import (
    MAX_ITEMS,
    MAX_SIMULATED,
    MAX_TRIALS,
    EarlyStop,
    Question,
    Sweep,
)
from sweeps.request.search import Search
from trainer.base.errors import BadInput
from trainer.base.places import CONF
from trainer.config.schema import first_of, in_words


def check_sweep(content: Mapping[str, Any]) -> Sweep:
    """The sweep with this content.

    Raises BadInput for a key that is unknown, missing, of a wrong type or without effect, for
    repeated values, or if there is no sync arm.
    """
    try:
        sweep = Sweep.model_validate(dict(content))
    except ValidationError as error:
        raise _refusal(error) from None
    _check_repeats(sweep)
    scales = sorted(file.stem for file in (CONF / "scale").glob("*.yaml"))
    if unknown := sorted(set(sweep.scales) - set(scales)):
        raise BadInput("sweep.scales", unknown, f"must be among {', '.join(scales)}")
    if "sync" not in sweep.arms:
        raise BadInput("sweep.arms", list(sweep.arms), "must have an arm sync to compare with")
    for words in (sweep.base, *sweep.arms.values()):
        refuse_reserved(words)
    _check_number(sweep)
    _check_grid(sweep)
    _check_tune(sweep)
    _check_search(sweep)
    _check_advice(sweep)
    return sweep


def _refusal(error: ValidationError) -> BadInput:
    first = first_of(error)
    key = ".".join(str(part) for part in ("sweep", *first["loc"]))
    given = "missing" if first["type"] == "missing" else first["input"]
    schemas: dict[str, type[BaseModel]] = {
        "early_stop": EarlyStop,
        "advice": Question,
        "search": Search,
    }
    schema = schemas.get(str(first["loc"][0]), Sweep) if len(first["loc"]) > 1 else Sweep
    return BadInput(key, given, in_words(first, schema))


def _check_repeats(sweep: Sweep) -> None:
    lists = {f"grid.{key}": list(values) for key, values in sweep.grid.items()}
    for key, values in {**lists, "seeds": sweep.seeds}.items():
        if any(value in values[:i] for i, value in enumerate(values)):
            raise BadInput(f"sweep.{key}", values, "must not repeat a value")
    for one, other in combinations(sweep.arms, 2):
        if sorted(sweep.arms[one]) == sorted(sweep.arms[other]):
            allowed = f"must differ: {one} and {other} have the same overrides"
            raise BadInput("sweep.arms", sweep.arms[one], allowed)


def _check_number(sweep: Sweep) -> None:
    num_points = prod(map(len, sweep.grid.values()))
    tried = sweep.search.budget * len(sweep.search.seeds) if sweep.search else 0
    num_trials = num_points * len(sweep.arms) * (len(sweep.seeds) + tried)
    if num_trials > MAX_TRIALS:
        asked = f"{num_points} points, {len(sweep.arms)} arms, {len(sweep.seeds)} seeds"
        asked += f", {tried} tried at each point" if tried else ""
        raise BadInput("sweep", asked, f"must ask for at most {MAX_TRIALS:,} trials: divide it")


def _check_grid(sweep: Sweep) -> None:
    """Raises BadInput for an axis that another axis or an arm overrides: it has no effect."""
    set_by: dict[str, set[str]] = {}
    for axis, values in sweep.grid.items():
        words = [word for value in values for word in overrides(axis, value)]
        refuse_reserved(words)
        set_by[axis] = {*keys(words)}
    for axis, swept in set_by.items():
        others = {f"grid.{other}": found for other, found in set_by.items() if other != axis}
        arms = {f"arms.{arm}": set(keys(words)) for arm, words in sweep.arms.items()}
        for other, found in {**others, **arms}.items():
            if both := sorted(swept & found):
                allowed = f"must be set in one place: sweep.{other} sets {both[0]} too"
                raise BadInput(f"sweep.grid.{axis}", both[0], allowed)


def _check_tune(sweep: Sweep) -> None:
    if prod(map(len, sweep.tune.values())) > MAX_ITEMS:
        allowed = f"must have at most {MAX_ITEMS:,} combinations of factors"
        raise BadInput("sweep.tune", list(sweep.tune), allowed)
    if sweep.shared is not None:
        _check_shared(sweep, sweep.shared)
    for key, factors in sweep.tune.items():
        if any(low >= high for low, high in pairwise(factors)):
            raise BadInput(f"sweep.tune.{key}", factors, "must be factors in ascending order")
        if key in sweep.grid:
            raise BadInput("sweep.tune", key, "must not be an axis of the grid too")


def _check_shared(sweep: Sweep, shared: str) -> None:
    if not sweep.tune:
        raise BadInput("sweep.shared", shared, "shares what is tuned: needs sweep.tune")
    if shared not in (known := sweep.grid.get("optimizer", [])):
        names = ", ".join(value for value in known if isinstance(value, str))
        raise BadInput("sweep.shared", shared, f"must be among sweep.grid.optimizer ({names})")


def _check_search(sweep: Sweep) -> None:
    if sweep.search is None:
        return
    if sweep.tune:
        allowed = "must be left out where a search chooses the settings"
        raise BadInput("sweep.tune", list(sweep.tune), allowed)
    if both := sorted({*sweep.search.seeds} & {*sweep.seeds}):
        allowed = "must not be a seed of the sweep: what is chosen is compared on those"
        raise BadInput("sweep.search.seeds", both[0], allowed)
    in_arms = {key for words in sweep.arms.values() for key in keys(words)}
    for where, found in (("grid", {*sweep.grid}), ("arms", in_arms)):
        if twice := sorted(found & {*sweep.search.space}):
            allowed = f"must be set in one place: sweep.{where} sets it too"
            raise BadInput("sweep.search.space", twice[0], allowed)


def _check_advice(sweep: Sweep) -> None:
    if sweep.advice is None:
        return
    if unknown := sorted({*sweep.advice.arms} - {*sweep.arms} | {*sweep.advice.arms} & {"sync"}):
        allowed = f"must be among {', '.join(arm for arm in sweep.arms if arm != 'sync')}"
        raise BadInput("sweep.advice.arms", unknown[0], allowed)
    stages, microbatches = sweep.advice.stages, sweep.advice.microbatches
    if microbatches < stages - 1:
        allowed = f"must be stages - 1 = {stages - 1} or more: 2BW needs them"
        raise BadInput("sweep.advice.microbatches", microbatches, allowed)
    if stages * microbatches > MAX_SIMULATED:
        allowed = f"must be {MAX_SIMULATED // stages} at most: the pipeline is simulated"
        raise BadInput("sweep.advice.microbatches", microbatches, allowed)
