"""A sweep file and a scale → the trials that they ask for, validated, each once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, MinLen
from pydantic import BaseModel, ConfigDict, ValidationError

from trainer.compose import CONF, compose
from trainer.errors import BadInput
from trainer.plan import Plan, plan_trial
from trainer.record import trial_folder

Seed = Annotated[int, Ge(0)]
Value = str | int | float | bool | dict[str, Any] | None
Factor = Annotated[int, Gt(0)] | Annotated[float, Gt(0)]
Config = dict[str, Any]


class Sweep(BaseModel):
    """A grid of points × arms × seeds over common overrides, and the rule for its verdict.

    A value of the grid that is a mapping stands for several overrides that move together. `scales`
    holds further common overrides of single scales. `tune` names a key and factors on its value:
    it is chosen for each point before the arms run (see tune.py).
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    base: list[str]
    scales: dict[str, list[str]] = {}
    grid: dict[str, Annotated[list[Value], MinLen(1)]]
    arms: Annotated[dict[str, list[str]], MinLen(1)]
    seeds: Annotated[list[Seed], MinLen(1)]
    tune: dict[str, Annotated[list[Factor], MinLen(2)]] = {}
    verdict: str


@dataclass(frozen=True)
class Trial:
    """One trial that a sweep asks for."""

    arm: str
    config: dict[str, Any]
    plan: Plan

    @property
    def folder(self) -> Path:
        """Where it is recorded."""
        return trial_folder(self.config, self.plan.trial_id)


@dataclass(frozen=True)
class Point:
    """One setting of the swept keys: its overrides, and the config of each arm, seeds aside."""

    overrides: list[str]
    configs: dict[str, Config]

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Every arm at every seed; raises BadInput for a trial that cannot be."""
        seeded = [
            (arm, {**config, "seed": seed})
            for arm, config in self.configs.items()
            for seed in seeds
        ]
        return [Trial(arm, config, plan_trial(config)) for arm, config in seeded]


def check_sweep(content: Mapping[str, Any]) -> Sweep:
    """The sweep; raises BadInput for a bad key, a repeated seed or value, or no sync arm."""
    try:
        sweep = Sweep.model_validate(dict(content))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in ("sweep", *first["loc"]))
        raise BadInput(key, first["input"], first["msg"]) from None
    lists: dict[str, list[Any]] = {f"grid.{key}": list(of) for key, of in sweep.grid.items()}
    for key, values in {**lists, "seeds": sweep.seeds}.items():
        if any(value in values[:i] for i, value in enumerate(values)):
            raise BadInput(f"sweep.{key}", values, "must not repeat a value")
    scales = sorted(file.stem for file in (CONF / "scale").glob("*.yaml"))
    if unknown := sorted(set(sweep.scales) - set(scales)):
        raise BadInput("sweep.scales", unknown, f"must be among {', '.join(scales)}")
    if "sync" not in sweep.arms:
        raise BadInput("sweep.arms", list(sweep.arms), "must have an arm sync to compare with")
    _check_tune(sweep)
    return sweep


def _check_tune(sweep: Sweep) -> None:
    if len(sweep.tune) > 1:
        raise BadInput("sweep.tune", list(sweep.tune), "must be one key: one value is chosen")
    for key, factors in sweep.tune.items():
        if any(low >= high for low, high in pairwise(factors)):
            raise BadInput(f"sweep.tune.{key}", factors, "must be factors in ascending order")
        if key in sweep.grid:
            raise BadInput("sweep.tune", key, "must not be an axis of the grid too")


def points(sweep: Sweep, results: Path) -> list[Point]:
    """Every combination of the grid's values; raises BadInput for one that no trial can have.

    Paths become absolute: a worker runs in a folder of its own.
    """
    axes = [[overrides(key, value) for value in values] for key, values in sweep.grid.items()]
    found = []
    for combination in product(*axes):
        swept = [override for of_axis in combination for override in of_axis]
        configs = {
            arm: _config(sweep.base, swept, of_arm, results) for arm, of_arm in sweep.arms.items()
        }
        found.append(Point(swept, configs))
    return found


def _config(base: list[str], swept: list[str], of_arm: list[str], results: Path) -> Config:
    config = _hold_tokens(compose(_in_order([*base, *swept, *of_arm])), base, swept)
    config["results"] = str(results.absolute())
    config["data"]["path"] = str(Path(config["data"]["path"]).absolute())
    return config


def unique(trials: Iterable[Trial]) -> list[Trial]:
    """Each trial once, the longest first."""
    first: dict[str, Trial] = {}
    for trial in trials:
        first.setdefault(trial.plan.trial_id, trial)
    return sorted(first.values(), key=lambda trial: -trial.plan.flops)


def overrides(key: str, value: Value) -> list[str]:
    """What a value of the grid stands for."""
    if isinstance(value, dict):
        return [override for name, part in value.items() for override in overrides(name, part)]
    return [f"{key}={'null' if value is None else value}"]


def _in_order(overrides: Sequence[str]) -> list[str]:
    """Choices of groups before keys inside them: Hydra resolves groups first, the last one wins."""
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    last = {override.split("=")[0]: override for override in overrides}
    return sorted(last.values(), key=lambda override: override.split("=")[0] not in groups)


def _hold_tokens(config: Config, base: Sequence[str], swept: Sequence[str]) -> Config:
    """A point that changes the size of a batch trains on as many tokens as the base does."""
    keys = {override.split("=")[0] for override in swept}
    if config["num_updates"] is None or not keys & {"batch_size", "seq_len"}:
        return config
    reference = compose(_in_order(base))
    tokens = config["num_updates"] * reference["batch_size"] * reference["seq_len"]
    num_updates = max(1, round(tokens / (config["batch_size"] * config["seq_len"])))
    return {**config, "num_updates": num_updates}
