"""A sweep at a scale → the trials that it asks for, validated, each once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from sweeps.schema import Config, Sweep, keys, overrides
from trainer.compose import CONF, Composer
from trainer.plan import Plan, Planner
from trainer.record import trial_folder


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
    plan: Planner = field(compare=False, repr=False)

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Every arm at every seed; raises BadInput for a trial that cannot be."""
        seeded = [
            (arm, {**config, "seed": seed})
            for arm, config in self.configs.items()
            for seed in seeds
        ]
        return [Trial(arm, config, self.plan(config)) for arm, config in seeded]


def points(sweep: Sweep, results: Path, compose: Composer | None = None) -> list[Point]:
    """Every combination of the grid's values; raises BadInput for one that no trial can have.

    Paths become absolute: a worker runs in a folder of its own. `compose`: one for several sweeps
    composes what they share once.
    """
    axes = [[overrides(key, value) for value in values] for key, values in sweep.grid.items()]
    compose, plan = compose or Composer(), Planner()
    found = []
    for combination in product(*axes):
        swept = [override for of_axis in combination for override in of_axis]
        configs = {}
        for arm, of_arm in sweep.arms.items():
            config = compose(_in_order([*sweep.base, *swept, *of_arm]))
            config = _hold_tokens(compose, config, sweep.base, swept)
            configs[arm] = _placed(config, results)
        found.append(Point(swept, configs, plan))
    return found


def _placed(config: Config, results: Path) -> Config:
    data = {**config["data"], "path": str(Path(config["data"]["path"]).absolute())}
    return {**config, "results": str(results.absolute()), "data": data}


def unique(trials: Iterable[Trial]) -> list[Trial]:
    """Each trial once, the longest first."""
    first: dict[str, Trial] = {}
    for trial in trials:
        first.setdefault(trial.plan.trial_id, trial)
    return sorted(first.values(), key=lambda trial: -trial.plan.flops)


def _in_order(overrides: Sequence[str]) -> list[str]:
    """Choices of groups before keys inside them: Hydra resolves groups first, the last one wins."""
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    last = {override.split("=")[0]: override for override in overrides}
    return sorted(last.values(), key=lambda override: override.split("=")[0] not in groups)


def _hold_tokens(
    compose: Composer, config: Config, base: Sequence[str], swept: Sequence[str]
) -> Config:
    """A point that changes the size of a batch trains on as many tokens as the base does."""
    if config["num_updates"] is None or not {*keys(swept)} & {"batch_size", "seq_len"}:
        return config
    reference = compose(_in_order(base))
    tokens = config["num_updates"] * reference["batch_size"] * reference["seq_len"]
    num_updates = max(1, round(tokens / (config["batch_size"] * config["seq_len"])))
    return {**config, "num_updates": num_updates}
