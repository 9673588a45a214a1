"""What a sweep file may hold: keys, their types and ranges, and the overrides they stand for."""

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from annotated_types import Gt, Interval, Len
from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Seed

Config = dict[str, Any]
Value = str | int | float | bool | dict[str, Any] | None

RESERVED = {
    "seed": "is set by the sweep's seeds: seeds=[…]",
    "out": "would be the folder of every trial: choose the store by results=DIR",
}
"""Key that a sweep itself sets for each trial → why it cannot be given."""
PREFIXES = "+~"
"""Hydra's: `+key=` adds, `++key=` adds or replaces, `~key` removes."""


def refuse_reserved(words: Iterable[str]) -> None:
    """Raise BadInput for an override of a reserved key."""
    for word in words:
        key, _, value = word.partition("=")
        if (plain := key.lstrip(PREFIXES)) in RESERVED:
            raise BadInput(key, value, RESERVED[plain])


def keys(words: Iterable[str]) -> list[str]:
    """Return the keys that these overrides set, without Hydra's prefixes."""
    return [word.split("=")[0].lstrip(PREFIXES) for word in words]


def overrides(key: str, value: Value) -> list[str]:
    """Return the overrides that a value of the grid's axis `key` stands for."""
    if isinstance(value, dict):
        return [override for name, part in value.items() for override in overrides(name, part)]
    return [f"{key}={'null' if value is None else value}"]


def _must(allowed: str, holds: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Return a validator that raises ValueError(allowed) unless `holds(value)`."""

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


MOST_SETTINGS = 1_000
"""The most settings that a search may try at a point, and choices that a key may have."""
FORMS = (
    "must be {factors: [low, high]} with 0 < low < high, {range: [low, high]} with low < high, or "
    "a list of choices"
)
Axis = dict[str, list[float]] | list[Any]


def _axis(given: Any) -> Axis:
    """Return `given` if it says how a key may be chosen; raises ValueError."""
    if isinstance(given, list) and _are_choices(given):
        return given
    if isinstance(given, dict) and len(given) == 1:
        [(form, ends)] = given.items()
        if form in ("factors", "range") and _ascend(ends) and (form == "range" or ends[0] > 0):
            return {form: [float(end) for end in ends]}
    raise ValueError(FORMS)


def _are_choices(given: list[Any]) -> bool:
    scalars = all(isinstance(value, str | int | float) for value in given)
    return scalars and 2 <= len({*map(str, given)}) == len(given) <= MOST_SETTINGS


def _ascend(ends: Any) -> bool:
    return (
        isinstance(ends, list)
        and len(ends) == 2
        and all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
        and -math.inf < ends[0] < ends[1] < math.inf
    )


class Search(BaseModel):
    """At each point, `budget` settings of the keys in `space` are tried in every arm, `at_once` of
    them side by side, at `seeds`, which compare nothing (see plan/searching.py).

    An axis of the space is {factors: [low, high]} (times the value of the point, log-uniform),
    {range: [low, high]} (uniform), or a list of choices.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    budget: Annotated[int, Interval(ge=1, le=MOST_SETTINGS)]
    at_once: Annotated[int, Interval(ge=1, le=MOST_SETTINGS)]
    seeds: Annotated[list[Seed], Len(1, MOST_SETTINGS)]
    sampler_seed: Annotated[int, Interval(ge=0, le=2**32 - 1)]
    space: Annotated[dict[str, Annotated[Any, PlainValidator(_axis)]], Len(1, MOST_SETTINGS)]


class EarlyStop(BaseModel):
    """`margin`: nats per token that a point's sync loss may end above the best one."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    margin: Annotated[float, Gt(0)]


class AdviceQuestion(BaseModel):
    """May a pipeline of `stages` ranks with `microbatches` per batch be asynchronous?

    To answer it the `arms` are also trained as much longer as 2BW is faster there than the fastest
    synchronous pipeline (see plan/sweep_plan.py). Without arms the sweep's own trials have to
    answer.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    stages: Annotated[int, Interval(ge=1, le=MAX_SIMULATED)]
    microbatches: Annotated[int, Interval(ge=1, le=MAX_SIMULATED)]
    arms: Annotated[list[str], Len(0, MAX_ITEMS)]


class Sweep(BaseModel):
    """A grid of points × arms × seeds over common overrides, and the rule for its verdict.

    A value of the grid that is a mapping stands for several overrides that change together.
    `prefer`: overrides that are added if all trials can be made with them (see plan/preferred.py).
    `scales`: name of a scale → words as on a command line (see command_line.py). `tune`: keys →
    factors on their values, which are chosen for each point before the arms run, or, with `shared`,
    for those of that optimizer (see plan/tuning.py). `search`: settings that a sampler proposes,
    instead (see `Search`). `early_stop` leaves out points whose sync arm ends far above the best
    one. The sweep ends in the answer to the question `advice`. For people: `verdict`, which is
    printed with the report, and `paper`, the figures and tables that ask the same.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    base: Overrides
    prefer: Overrides = []
    scales: dict[str, Overrides] = {}
    grid: dict[str, Annotated[list[GridValue], Len(1, MAX_ITEMS)]]
    arms: Annotated[dict[str, Overrides], Len(1, MAX_ITEMS)]
    seeds: Annotated[list[Seed], Len(1, MAX_ITEMS)]
    tune: dict[str, Annotated[list[Factor], Len(2, MAX_ITEMS)]] = {}
    shared: str | None = None
    search: Search | None = None
    early_stop: EarlyStop | None = None
    advice: AdviceQuestion | None = None
    verdict: Annotated[str, Len(1)] | None = None
    paper: Annotated[str, Len(1)] | None = None

    @property
    def axes(self) -> dict[str, list[str]]:
        """Axis of the grid → the overrides of all of its values."""
        return {
            axis: [word for value in values for word in overrides(axis, value)]
            for axis, values in self.grid.items()
        }

    @property
    def words(self) -> list[str]:
        """All overrides of the sweep: common ones, those of the grid, those of the arms."""
        lists = [self.base, *self.axes.values(), *self.arms.values()]
        return [word for words in lists for word in words]
