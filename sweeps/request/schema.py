"""What a sweep file may hold: its keys, their types and ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from annotated_types import Gt, Interval, Len
from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator

from sweeps.request.search import Search
from trainer.base.ranges import Seed

Config = dict[str, Any]


def _must(allowed: str, holds: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """A validator that raises ValueError with the message `allowed` unless `holds(value)`."""

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
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return SMALLEST <= value <= LARGEST


def _is_override(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals and key.strip())


MAX_ITEMS, MAX_TRIALS = 1_000, 10_000
"""The most items of a list of a sweep, and the most trials that it may ask for."""
MAX_SIMULATED = 16_384
"""The most stages times microbatches of the pipeline that a sweep asks about."""
SMALLEST, LARGEST = 1e-6, 1e6
"""Factors that are tried."""

Override = Annotated[str, AfterValidator(_must("must be key=value", _is_override))]
Overrides = Annotated[list[Override], Len(0, MAX_ITEMS)]
GridValue = Annotated[
    Any, PlainValidator(_must("must be one value, or a mapping of keys to one each", _is_value))
]
Factor = Annotated[
    Any, PlainValidator(_must(f"must be a number from {SMALLEST:g} to {LARGEST:g}", _is_factor))
]


class EarlyStop(BaseModel):
    """`margin`: nats per token that a point's sync loss may end above the best one."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    margin: Annotated[float, Gt(0)]


class Question(BaseModel):
    """May a pipeline of `stages` ranks with `microbatches` per batch be asynchronous?

    To answer it the `arms` are also trained as much longer as 2BW is faster there than the fastest
    synchronous pipeline (see plan/sweep_plan.py). Without any the sweep's own trials have to answer.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    stages: Annotated[int, Interval(ge=1, le=MAX_SIMULATED)]
    microbatches: Annotated[int, Interval(ge=1, le=MAX_SIMULATED)]
    arms: Annotated[list[str], Len(0, MAX_ITEMS)]


class Sweep(BaseModel):
    """A grid of points × arms × seeds over common overrides, and the rule for its verdict.

    A value of the grid that is a mapping stands for several overrides that change together.
    `scales`: name of a scale → words as on a command line (see command_line.py). `tune`: keys →
    factors on their values, which are chosen for each point before the arms run, or, with `shared`,
    for those of that optimizer (see plan/tuning.py). `search`: settings that a sampler proposes,
    instead (see search.py). `early_stop` leaves out points whose sync arm ends far above the best
    one. The sweep ends in the answer to the question `advice`. For people: `verdict`, which is
    printed with the report, and `paper`, the figures and tables that ask the same.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    base: Overrides
    scales: dict[str, Overrides] = {}
    grid: dict[str, Annotated[list[GridValue], Len(1, MAX_ITEMS)]]
    arms: Annotated[dict[str, Overrides], Len(1, MAX_ITEMS)]
    seeds: Annotated[list[Seed], Len(1, MAX_ITEMS)]
    tune: dict[str, Annotated[list[Factor], Len(2, MAX_ITEMS)]] = {}
    shared: str | None = None
    search: Search | None = None
    early_stop: EarlyStop | None = None
    advice: Question | None = None
    verdict: Annotated[str, Len(1)] | None = None
    paper: Annotated[str, Len(1)] | None = None
