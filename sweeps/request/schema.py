"""What a sweep file may say: keys, types, ranges, and what would contradict itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, pairwise
from typing import Annotated, Any

from annotated_types import Ge, Gt, MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, ValidationError

from trainer.compose import CONF
from trainer.errors import BadInput

Value = str | int | float | bool | dict[str, Any] | None
Config = dict[str, Any]


def _must(allowed: str, holds: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """A check of a value, whose message is the same for every type of it."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(allowed)
        return value

    return check


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _is_value(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_scalar(part) for key, part in value.items())
    return _is_scalar(value)


def _is_factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_override(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals and key.strip())


Seed = Annotated[int, Ge(0)]
Override = Annotated[str, AfterValidator(_must("must be key=value", _is_override))]
Overrides = list[Override]
GridValue = Annotated[
    Any, PlainValidator(_must("must be one value, or a mapping of keys to one each", _is_value))
]
Factor = Annotated[
    Any, PlainValidator(_must("must be a number above 0 (1e-3 is text in YAML: 0.001)", _is_factor))
]


class EarlyStop(BaseModel):
    """How far above the best one a point's sync loss may end, in nats a token: early_stop.py."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    margin: Annotated[float, Gt(0)]


class Sweep(BaseModel):
    """A grid of points × arms × seeds over common overrides, and the rule for its verdict.

    A value of the grid that is a mapping stands for several overrides that move together. `scales`
    holds words as on a command line, for single scales (see request.py). `tune` names a key and
    factors on its value: it is chosen for each point before the arms run (see tune.py).
    `early_stop` leaves out points whose sync arm alone ends far above the best one (see
    early_stop.py).
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    base: Overrides
    scales: dict[str, Overrides] = {}
    grid: dict[str, Annotated[list[GridValue], MinLen(1)]]
    arms: Annotated[dict[str, Overrides], MinLen(1)]
    seeds: Annotated[list[Seed], MinLen(1)]
    tune: dict[str, Annotated[list[Factor], MinLen(2)]] = {}
    early_stop: EarlyStop | None = None
    verdict: Annotated[str, MinLen(1)]


def check_sweep(content: Mapping[str, Any]) -> Sweep:
    """The sweep; raises BadInput for a key that is unknown, missing or of a wrong type, for what is
    there twice, for keys that would have no effect, or if there is no sync arm.
    """
    try:
        sweep = Sweep.model_validate(dict(content))
    except ValidationError as error:
        raise _first_of(error) from None
    _check_repeats(sweep)
    scales = sorted(file.stem for file in (CONF / "scale").glob("*.yaml"))
    if unknown := sorted(set(sweep.scales) - set(scales)):
        raise BadInput("sweep.scales", unknown, f"must be among {', '.join(scales)}")
    if "sync" not in sweep.arms:
        raise BadInput("sweep.arms", list(sweep.arms), "must have an arm sync to compare with")
    for words in (sweep.base, *sweep.arms.values()):
        refuse_reserved(words)
    _check_grid(sweep)
    _check_tune(sweep)
    return sweep


def _first_of(error: ValidationError) -> BadInput:
    errors = error.errors()
    # A misspelt key is missing too: what is there says more than what is not.
    first = next((one for one in errors if one["type"] != "missing"), errors[0])
    key = ".".join(str(part) for part in ("sweep", *first["loc"]))
    given = "missing" if first["type"] == "missing" else " ".join(str(first["input"]).split())
    schema = EarlyStop if "early_stop" in first["loc"] else Sweep
    known = f" (known: {', '.join(schema.model_fields)})" if "extra" in first["type"] else ""
    return BadInput(key, given, first["msg"].removeprefix("Value error, ") + known)


def _check_repeats(sweep: Sweep) -> None:
    lists = {f"grid.{key}": list(values) for key, values in sweep.grid.items()}
    for key, values in {**lists, "seeds": sweep.seeds}.items():
        if any(value in values[:i] for i, value in enumerate(values)):
            raise BadInput(f"sweep.{key}", values, "must not repeat a value")
    for one, other in combinations(sweep.arms, 2):
        if sorted(sweep.arms[one]) == sorted(sweep.arms[other]):
            allowed = f"must differ: {one} and {other} have the same overrides"
            raise BadInput("sweep.arms", sweep.arms[one], allowed)


def _check_grid(sweep: Sweep) -> None:
    """An axis that another axis or an arm overrides would have no effect."""
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
    if len(sweep.tune) > 1:
        raise BadInput("sweep.tune", list(sweep.tune), "must be one key: one value is chosen")
    for key, factors in sweep.tune.items():
        if any(low >= high for low, high in pairwise(factors)):
            raise BadInput(f"sweep.tune.{key}", factors, "must be factors in ascending order")
        if key in sweep.grid:
            raise BadInput("sweep.tune", key, "must not be an axis of the grid too")


RESERVED = {
    "seed": "is set by the sweep's seeds: seeds=[…]",
    "out": "would be the folder of every trial: choose the store by results=DIR",
}
"""Keys that a sweep sets for each of its trials itself."""


def refuse_reserved(words: Iterable[str]) -> None:
    """Raises BadInput for an override that a sweep may not have."""
    for word in words:
        key, _, value = word.partition("=")
        if key in RESERVED:
            raise BadInput(key, value, RESERVED[key])


def keys(words: Iterable[str]) -> list[str]:
    """What these overrides set."""
    return [word.split("=")[0] for word in words]


def overrides(key: str, value: Value) -> list[str]:
    """What a value of the grid stands for."""
    if isinstance(value, dict):
        return [override for name, part in value.items() for override in overrides(name, part)]
    return [f"{key}={'null' if value is None else value}"]
