"""That a sweep does not contradict itself."""

from collections.abc import Mapping
from itertools import combinations, pairwise
from math import prod
from typing import Any

from pydantic import BaseModel, ValidationError

from pipegap.sweeps.request.files import known
from pipegap.sweeps.request.schema import (
    MAX_ITEMS,
    MAX_SIMULATED,
    MAX_TRIALS,
    AdviceQuestion,
    EarlyStop,
    Search,
    Sweep,
    keys,
    refuse_reserved,
)
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.schema import first_of, in_words


def check_sweep(content: Mapping[str, Any]) -> Sweep:
    """Return the sweep with this content.

    Raises BadInput for a key that is unknown, missing, of a wrong type or without effect, for
    repeated values, or if there is no sync arm.
    """
    try:
        sweep = Sweep.model_validate(dict(content))
    except ValidationError as error:
        raise _refusal(error) from None
    _check_repeats(sweep)
    scales = known("scale")
    if unknown := sorted({*sweep.scales} - {*scales}):
        raise BadInput("sweep.scales", unknown, f"must be among {', '.join(scales)}")
    if "sync" not in sweep.arms:
        raise BadInput("sweep.arms", list(sweep.arms), "must have an arm sync to compare with")
    refuse_reserved(sweep.words)
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
        "advice": AdviceQuestion,
        "search": Search,
    }
    schema = schemas.get(str(first["loc"][0]), Sweep) if len(first["loc"]) > 1 else Sweep
    return BadInput(key, given, in_words(first, schema))


def _check_repeats(sweep: Sweep) -> None:
    lists = {f"grid.{key}": list(values) for key, values in sweep.grid.items()}
    for key, values in {**lists, "seeds": sweep.seeds}.items():
        if any(value in values[:i] for i, value in enumerate(values)):
            raise BadInput(f"sweep.{key}", values, "must not repeat a value")
    for arm, other in combinations(sweep.arms, 2):
        if sorted(sweep.arms[arm]) == sorted(sweep.arms[other]):
            allowed = f"must differ: {arm} and {other} have the same overrides"
            raise BadInput("sweep.arms", sweep.arms[arm], allowed)


def _check_number(sweep: Sweep) -> None:
    num_points = prod(map(len, sweep.grid.values()))
    tried = sweep.search.budget * len(sweep.search.seeds) if sweep.search else 0
    num_trials = num_points * len(sweep.arms) * (len(sweep.seeds) + tried)
    if num_trials > MAX_TRIALS:
        counts = f"{num_points} points, {len(sweep.arms)} arms, {len(sweep.seeds)} seeds"
        counts += f", {tried} tried at each point" if tried else ""
        raise BadInput("sweep", counts, f"must ask for at most {MAX_TRIALS:,} trials: divide it")


def _check_grid(sweep: Sweep) -> None:
    """Raise BadInput for an axis that another axis or an arm overrides: it has no effect."""
    axes = {f"grid.{axis}": {*keys(words)} for axis, words in sweep.axes.items()}
    arms = {f"arms.{arm}": {*keys(words)} for arm, words in sweep.arms.items()}
    for axis, swept in axes.items():
        for other, changed in {**axes, **arms}.items():
            if other != axis and (both := sorted(swept & changed)):
                allowed = f"must be set in one place: sweep.{other} sets {both[0]} too"
                raise BadInput(f"sweep.{axis}", both[0], allowed)


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
    if shared not in (optimizers := sweep.grid.get("optimizer", [])):
        names = ", ".join(value for value in optimizers if isinstance(value, str))
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
    for where, changed in (("grid", {*sweep.grid}), ("arms", in_arms)):
        if twice := sorted(changed & {*sweep.search.space}):
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
