"""What a sweep file may hold: its keys, their types and ranges, and no contradictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, pairwise
from math import prod
from typing import Annotated, Any

from annotated_types import Gt, Interval, Len
from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, ValidationError

from sweeps.request.search import Search
from trainer.base.errors import BadInput
from trainer.base.places import CONF
from trainer.base.ranges import Seed
from trainer.config.schema import first_of, in_words

Value = str | int | float | bool | dict[str, Any] | None
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
    synchronous pipeline (see plan/longer.py). Without any the sweep's own trials have to answer.
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
    one. The sweep ends in the answer to the question `advice`. `verdict` is for people: it is
    printed with the report.
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


RESERVED = {
    "seed": "is set by the sweep's seeds: seeds=[…]",
    "out": "would be the folder of every trial: choose the store by results=DIR",
}
"""Key that a sweep itself sets for each trial → why it cannot be given."""
PREFIXES = "+~"
"""Hydra's: `+key=` adds, `++key=` adds or replaces, `~key` removes."""


def refuse_reserved(words: Iterable[str]) -> None:
    """Raises BadInput for an override of a reserved key."""
    for word in words:
        key, _, value = word.partition("=")
        if (plain := key.lstrip(PREFIXES)) in RESERVED:
            raise BadInput(key, value, RESERVED[plain])


def keys(words: Iterable[str]) -> list[str]:
    """The keys that these overrides set, without Hydra's prefixes."""
    return [word.split("=")[0].lstrip(PREFIXES) for word in words]


def overrides(key: str, value: Value) -> list[str]:
    """The overrides that a value of the grid's axis `key` stands for."""
    if isinstance(value, dict):
        return [override for name, part in value.items() for override in overrides(name, part)]
    return [f"{key}={'null' if value is None else value}"]
