"""A sweep file and a scale → the trials that they ask for, validated, each once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, MinLen
from pydantic import BaseModel, ConfigDict, ValidationError

from trainer.compose import CONF, compose
from trainer.errors import BadInput
from trainer.plan import Plan, plan_trial
from trainer.record import trial_folder

Seed = Annotated[int, Ge(0)]
Value = str | int | float | bool | dict[str, Any] | None


class Sweep(BaseModel):
    """A grid of points × arms × seeds over common overrides, and the rule for its verdict.

    A value of the grid that is a mapping stands for several overrides that move together.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    base: list[str]
    grid: dict[str, Annotated[list[Value], MinLen(1)]]
    arms: Annotated[dict[str, list[str]], MinLen(1)]
    seeds: Annotated[list[Seed], MinLen(1)]
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
    if "sync" not in sweep.arms:
        raise BadInput("sweep.arms", list(sweep.arms), "must have an arm sync to compare with")
    return sweep


def expand(sweep: Sweep, results: Path) -> list[Trial]:
    """Every unique trial of the sweep, the longest first; raises BadInput before any starts.

    Paths become absolute: a worker runs in a folder of its own.
    """
    unique: dict[str, Trial] = {}
    for trial in _asked(sweep, results):
        unique.setdefault(trial.plan.trial_id, trial)
    return sorted(unique.values(), key=lambda trial: -trial.plan.flops)


def _asked(sweep: Sweep, results: Path) -> Iterator[Trial]:
    axes = [[_overrides(key, value) for value in values] for key, values in sweep.grid.items()]
    for point in product(*axes):
        swept = [override for overrides in point for override in overrides]
        for arm, of_arm in sweep.arms.items():
            overrides = _in_order([*sweep.base, *swept, *of_arm])
            config = _hold_tokens(compose(overrides), sweep.base, swept)
            config["results"] = str(results.absolute())
            config["data"]["path"] = str(Path(config["data"]["path"]).absolute())
            for seed in sweep.seeds:
                seeded = {**config, "seed": seed}
                yield Trial(arm, seeded, plan_trial(seeded))


def num_asked(sweep: Sweep) -> int:
    """Points × arms × seeds, before trials that are the same are found."""
    num_points = 1
    for values in sweep.grid.values():
        num_points *= len(values)
    return num_points * len(sweep.arms) * len(sweep.seeds)


def _overrides(key: str, value: Value) -> list[str]:
    if isinstance(value, dict):
        return [override for name, part in value.items() for override in _overrides(name, part)]
    return [f"{key}={'null' if value is None else value}"]


def _in_order(overrides: Sequence[str]) -> list[str]:
    """Choices of groups before keys inside them: Hydra resolves groups first, the last one wins."""
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    last = {override.split("=")[0]: override for override in overrides}
    return sorted(last.values(), key=lambda override: override.split("=")[0] not in groups)


def _hold_tokens(
    config: dict[str, Any], base: Sequence[str], swept: Sequence[str]
) -> dict[str, Any]:
    """A point that changes the size of a batch trains on as many tokens as the base does."""
    keys = {override.split("=")[0] for override in swept}
    if config["num_updates"] is None or not keys & {"batch_size", "seq_len"}:
        return config
    reference = compose(_in_order(base))
    tokens = config["num_updates"] * reference["batch_size"] * reference["seq_len"]
    num_updates = max(1, round(tokens / (config["batch_size"] * config["seq_len"])))
    return {**config, "num_updates": num_updates}
