"""Sweep files and scales: how they are read, and what they may hold."""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, pairwise
from math import prod
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt, Interval, Len
from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, ValidationError

from pipegap.trainer.base import documents
from pipegap.trainer.base.cli import one_of
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.former import refuse_dropped_choice
from pipegap.trainer.base.places import CODE_ROOT, CONF, cut, digest
from pipegap.trainer.base.ranges import Seed
from pipegap.trainer.config.identity import is_number, yamls
from pipegap.trainer.config.schema import first_of, in_words

# Reads sweep files and scales, by their name in conf/, or a sweep file by its path.

LONGEST = 48
"""Letters of a sweep's name in its label: with a scale and a number it is a tag of wandb, which has
64 at most."""
ALL, PAPER = "all", "paper"
"""The names that stand for every sweep with a name, and for those of the paper."""
STUDIES, OF_STUDY = CODE_ROOT / "findings", "sweep.yaml"
"""A checkout has follow-up sweeps here: `findings/STUDY/sweep.yaml` is the sweep STUDY."""
SHARED = STUDIES / "shared.yaml"
"""What the follow-up sweeps share."""


def slug(name: str) -> str:
    """Return `name` for ids, tags and folders: letters of English, digits and `._-`, with - for the
    rest. Names that differ in other letters alone, or in their ends, differ in a hash."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "sweep"
    return cut(plain if name.isascii() else f"{plain}-{digest(name)}", LONGEST)


def known(group: str) -> list[str]:
    """Return the names of the choices in a group of conf/, with those of sweeps in findings/."""
    names = {path.stem for path in yamls(group)}
    if group == "sweep":  # a wheel has no findings/, and so no studies
        names |= {file.parent.name for file in STUDIES.glob(f"*/{OF_STUDY}")}
    return sorted(names)


def sweep_files(names: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the label of each sweep and the content of its file, which is not checked yet.

    `names`: sweeps `a,b`, `all` those with a name, or `paper`, those that answer something that the
    paper asks. A sweep is the name of a file in conf/sweep or of a study in findings/, or a path
    that ends in .yaml. The label of a path is its stem, and that of a study's path is the study.
    Raises BadInput if a file is not there, or holds no keys and values.
    """
    if names not in (ALL, PAPER):
        return [_sweep_file(name) for name in names.split(",")]
    files = map(_sweep_file, known("sweep"))
    return [(name, content) for name, content in files if names == ALL or "paper" in content]


def _sweep_file(name: str) -> tuple[str, dict[str, Any]]:
    content = _read("sweep", name, f", {ALL}, {PAPER}, or path/to/a.yaml")
    if not _is_of_study(name):
        return _label(name), {"base": [], **content}
    study = {"base": [], **parse("sweep", name, SHARED.read_text("utf-8")), **content}
    return _label(name), {**study, "base": [_from_here(word) for word in study["base"]]}


def _from_here(word: str) -> str:
    """Return a word of a study, with a `code=` relative to the checkout, not the working folder."""
    key, _, folder = word.partition("=")
    return f"code={os.path.relpath(CODE_ROOT / folder)}" if key == "code" else word


def _is_of_study(name: str) -> bool:
    path = Path(name).resolve() if is_path(name) else _named("sweep", name)
    return path == STUDIES / path.parent.name / OF_STUDY


def _label(name: str) -> str:
    if not is_path(name):
        return name
    path = Path(name).resolve()
    return path.parent.name if _is_of_study(name) else path.stem


def scale_file(name: str) -> list[str]:
    """Return the overrides of a scale; raises BadInput if there is none of that name."""
    return _read("scale", name)["base"]


def defaults_at(name: str, *, of_paper: bool) -> list[str]:
    """Return the overrides of a scale that a sweep's own base may replace.

    `of_paper`: with those that the scale has for all sweeps of the paper together. Raises BadInput
    if there is none of that name.
    """
    scale = _read("scale", name)
    words: list[str] = scale.get("default", [])
    return [*words, *scale.get(PAPER, [])] if of_paper else words


def search_file(name: str) -> dict[str, Any]:
    """Return the content of a search, which is not checked yet; raises BadInput if there is none.

    `name` is that of a file in conf/search, or a path that ends in .yaml.
    """
    return _read("search", name, ", or path/to/a.yaml")


def is_path(name: str) -> bool:
    """Return whether the name of a sweep or a search is the path of a file."""
    return name.endswith(".yaml")


def _named(group: str, name: str) -> Path:
    path = CONF / group / f"{name}.yaml"
    return path if group != "sweep" or path.exists() else STUDIES / name / OF_STUDY


def _read(group: str, name: str, paths: str = "") -> dict[str, Any]:
    """Return the content of a file. `paths`: what else than a name of the group is allowed."""
    if not (paths and is_path(name)) and name not in known(group):
        refuse_dropped_choice(group, name)  # first: it says what has replaced the name
        raise one_of(group, name, known(group), paths)
    path = Path(name) if paths and is_path(name) else _named(group, name)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(group, name, f"must be a YAML file that can be read ({error})") from None
    content = parse(group, name, text)
    if not isinstance(content, dict):
        raise BadInput(group, name, "must be a YAML file of keys and values")
    return content


def parse(key: str, value: str, text: str) -> Any:
    """Return the YAML `text` as plain data; raises BadInput, which names `key` and `value`."""
    try:
        return documents.read(text)
    except documents.NotRead as error:
        raise BadInput(key, value, f"must be YAML ({error})") from None


# What a sweep file may hold: keys, types, ranges, the overrides they stand for, and that these do
# not contradict each other.

Config = dict[str, Any]
Value = str | int | float | bool | dict[str, Any] | None

RESERVED = {
    "seed": "is set by the sweep's seeds: seeds=[…]",
    "out": "would be the folder of every trial: choose the store by results=DIR",
    "prefer": "was dropped in 0.3.0: say compile=update, or what else it preferred, in its place",
}
"""Key that cannot be given → why."""
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
    return is_number(value) and SMALLEST <= value <= LARGEST


def _is_override(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals and key.strip())


MAX_SETTINGS, MAX_TRIALS = 1_000, 10_000
"""The most settings that are tried at a point, and the most trials that a sweep may ask for."""
MAX_SIMULATED = 16_384
"""The most stages times microbatches of the pipeline that a sweep asks about."""
SMALLEST, LARGEST = 1e-6, 1e6
"""Factors that are tried."""

# `PlainValidator` in place of a union: pydantic would report one error for each type of a union.
Override = Annotated[str, AfterValidator(_must("must be key=value", _is_override))]
Overrides = list[Override]
GridValue = Annotated[
    Any, PlainValidator(_must("must be one value, or a mapping of keys to one each", _is_value))
]
Factor = Annotated[
    Any, PlainValidator(_must(f"must be a number from {SMALLEST:g} to {LARGEST:g}", _is_factor))
]

FORMS = (
    "must be {factors: [low, high]} with 0 < low < high, {range: [low, high]} with low < high, or "
    "a list of choices"
)
Axis = dict[str, list[float]] | list[Any]


def _axis(value: Any) -> Axis:
    """Return `value` if it says how a key may be chosen; raises ValueError."""
    if isinstance(value, list) and _are_choices(value):
        return value
    if isinstance(value, dict) and len(value) == 1:
        [(form, ends)] = value.items()
        if form in ("factors", "range") and _ascend(ends) and (form == "range" or ends[0] > 0):
            return {form: [float(end) for end in ends]}
    raise ValueError(FORMS)


def _are_choices(values: list[Any]) -> bool:
    scalars = all(isinstance(value, str | int | float) for value in values)
    # By their text: in the words for people, 1 and "1" would be the same choice.
    return scalars and 2 <= len({*map(str, values)}) == len(values) <= MAX_SETTINGS


def _ascend(ends: Any) -> bool:
    return (
        isinstance(ends, list)
        and len(ends) == 2
        and all(map(is_number, ends))
        and -math.inf < ends[0] < ends[1] < math.inf
    )


class Search(BaseModel):
    """At each point, `budget` settings of the keys in `space` are tried in every arm, `at_once` of
    them side by side, at `seeds`, which compare nothing (see plan/choosing.py).

    An axis of the space is {factors: [low, high]} (times the value of the point, log-uniform),
    {range: [low, high]} (uniform), or a list of choices.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    budget: Annotated[int, Interval(ge=1, le=MAX_SETTINGS)]
    at_once: Annotated[int, Interval(ge=1, le=MAX_SETTINGS)]
    seeds: Annotated[list[Seed], Len(1, MAX_SETTINGS)]
    sampler_seed: Annotated[int, Interval(ge=0, le=2**32 - 1)]
    space: Annotated[dict[str, Annotated[Any, PlainValidator(_axis)]], Len(1, MAX_SETTINGS)]


class Tuning(BaseModel):
    """How the values of `tune` are tried: at `seed`, which compares nothing (None: the sweep's
    first), with the keys of `inverse` divided by the factor, so that their product with the tuned
    values stays (see plan/choosing.py)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seed: Seed | None = None
    inverse: list[str] = []


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
    arms: list[str]


class EntryRules(BaseModel):
    """The sweep of an entry of the delay track (see request/entry.py).

    It is at `scale` unless the command line says another; a correction is entered with these
    `optimizers`; learning rate times weight decay is `decay`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    scale: str
    optimizers: Annotated[list[str], Len(1)]
    decay: Annotated[float, Gt(0)]


class Sweep(BaseModel):
    """A grid of points × arms × seeds over common overrides, and the rule for its verdict.

    A value of the grid that is a mapping stands for several overrides that change together.
    `scales`: name of a scale → words as on a command line (see command_line.py). `tune`: keys →
    factors on their values, which are chosen for each point before the arms run, or, with `shared`,
    for those of that optimizer; `tuning` says how (see plan/choosing.py). `search`: settings that a
    sampler proposes, instead (see `Search`). `early_stop` leaves out points whose sync arm ends far
    above the best one. The sweep ends in the answer to the question `advice`. `entry`: it is that
    of one choice, which the command line names (see request/entry.py). For people:
    `question`, with which its report begins, `verdict`, which is printed with it, and `paper`, the
    figures and tables that ask the same.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    base: Overrides
    scales: dict[str, Overrides] = {}
    grid: dict[str, Annotated[list[GridValue], Len(1)]]
    arms: Annotated[dict[str, Overrides], Len(1)]
    seeds: Annotated[list[Seed], Len(1)]
    tune: dict[str, Annotated[list[Factor], Len(2)]] = {}
    tuning: Tuning = Tuning()
    shared: str | None = None
    search: Search | None = None
    early_stop: EarlyStop | None = None
    advice: AdviceQuestion | None = None
    entry: EntryRules | None = None
    question: Annotated[str, Len(1)] | None = None
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
    value_text = "missing" if first["type"] == "missing" else first["input"]
    if key == "sweep.prefer":
        return BadInput(key, value_text, RESERVED["prefer"])
    inner: dict[str, type[BaseModel]] = {
        "early_stop": EarlyStop,
        "advice": AdviceQuestion,
        "search": Search,
        "tuning": Tuning,
        "entry": EntryRules,
    }
    schema = inner.get(str(first["loc"][0]), Sweep) if len(first["loc"]) > 1 else Sweep
    return BadInput(key, value_text, in_words(first, schema))


def _check_repeats(sweep: Sweep) -> None:
    lists = {f"grid.{key}": list(values) for key, values in sweep.grid.items()}
    for key, values in {**lists, "seeds": sweep.seeds}.items():
        if any(value in values[:i] for i, value in enumerate(values)):  # no set: a dict has no hash
            raise BadInput(f"sweep.{key}", values, "must not repeat a value")
    for arm, other_arm in combinations(sweep.arms, 2):
        if sorted(sweep.arms[arm]) == sorted(sweep.arms[other_arm]):
            allowed = f"must differ: {arm} and {other_arm} have the same overrides"
            raise BadInput("sweep.arms", sweep.arms[arm], allowed)


def _check_number(sweep: Sweep) -> None:
    # Before any config is composed, which takes time for each point.
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
        for other_axis, changed in {**axes, **arms}.items():
            if other_axis != axis and (shared_keys := sorted(swept & changed)):
                allowed = f"must be set in one place: sweep.{other_axis} sets {shared_keys[0]} too"
                raise BadInput(f"sweep.{axis}", shared_keys[0], allowed)


def _check_tune(sweep: Sweep) -> None:
    if prod(map(len, sweep.tune.values())) > MAX_SETTINGS:
        allowed = f"must have at most {MAX_SETTINGS:,} combinations of factors"
        raise BadInput("sweep.tune", list(sweep.tune), allowed)
    if sweep.shared is not None:
        _check_shared(sweep, sweep.shared)
    for key, factors in sweep.tune.items():
        if any(low >= high for low, high in pairwise(factors)):
            raise BadInput(f"sweep.tune.{key}", factors, "must be factors in ascending order")
        if key in sweep.grid:
            raise BadInput("sweep.tune", key, "must not be an axis of the grid too")
    _check_tuning(sweep)


def _check_tuning(sweep: Sweep) -> None:
    if sweep.tuning != Tuning() and not sweep.tune:
        tuning_keys = sweep.tuning.model_dump(exclude_defaults=True)
        raise BadInput("sweep.tuning", tuning_keys, "says how to tune: needs sweep.tune")
    if sweep.tuning.seed in sweep.seeds:
        allowed = "must not be a seed of the sweep: what is chosen is compared on those"
        raise BadInput("sweep.tuning.seed", sweep.tuning.seed, allowed)
    if twice := sorted({*sweep.tuning.inverse} & {*sweep.tune, *sweep.grid}):
        allowed = "must be set in one place: sweep.tune or sweep.grid sets it too"
        raise BadInput("sweep.tuning.inverse", twice[0], allowed)


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
    if shared_seeds := sorted({*sweep.search.seeds} & {*sweep.seeds}):
        allowed = "must not be a seed of the sweep: what is chosen is compared on those"
        raise BadInput("sweep.search.seeds", shared_seeds[0], allowed)
    in_arms = {key for words in sweep.arms.values() for key in keys(words)}
    for where, changed in (("grid", {*sweep.grid}), ("arms", in_arms)):
        if twice := sorted(changed & {*sweep.search.space}):
            allowed = f"must be set in one place: sweep.{where} sets it too"
            raise BadInput("sweep.search.space", twice[0], allowed)


def _check_advice(sweep: Sweep) -> None:
    if sweep.advice is None:
        return
    # Sync is not made longer: the longer delayed runs are compared with it.
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
