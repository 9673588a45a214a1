"""The settings that a sweep tries at a point before its arms run there, and what it chose."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from sweeps.request.expand import GridPoint, Trial
from sweeps.request.schema import Config
from trainer.config.schema import validate
from trainer.store.snapshot import Snapshot

SIZES = ("batch_size", "seq_len")
"""Keys of the size of a batch: a point trains on the same number of tokens with any."""


@dataclass(frozen=True)
class TriedSetting:
    """Values of dotted keys that are tried at a point."""

    values: dict[str, Any]
    point: GridPoint
    """The point with these values, in every arm."""
    trials: list[Trial]
    """The trials by which the values are judged."""
    losses: dict[str, float] | None = field(compare=False)
    """`mean_losses` of the trials when the setting was judged."""


def mean_losses(trials: Iterable[Trial], seen: Snapshot) -> dict[str, float] | None:
    """Return arm → mean final loss, infinite if it diverged; None while a trial has to run."""
    by_arm: dict[str, list[float]] = {}
    for trial in trials:
        if (loss := seen.final_loss(trial)) is None:
            return None
        by_arm.setdefault(trial.arm, []).append(loss)
    return {arm: fmean(losses) for arm, losses in by_arm.items()}


@dataclass(frozen=True)
class Choice:
    """A point, the settings that were tried there, and those that were chosen."""

    point: GridPoint
    tried: list[TriedSetting]
    """Ascending by value where keys are tuned, else in the order in which they were proposed."""
    settled: bool
    """Whether nothing is left to try."""
    chosen: dict[str, TriedSetting]
    """Arm → its best setting, once the choice is settled. Tuning chooses by sync alone. Empty if
    sync completed at none of the settings, or if nothing is tried."""
    arms: list[Trial]
    """The trials of all arms and seeds at the chosen settings; an estimate until these are settled.
    Empty if sync completed at none of the settings."""
    leader: GridPoint | None = None
    """The point at which the settings were chosen, if that is another one."""

    @property
    def choosing(self) -> list[Trial]:
        """The trials that choose, as far as they are known."""
        return [trial for setting in self.tried for trial in setting.trials]


def untried(point: GridPoint) -> Choice:
    """Return the choice at a point where nothing has been tried."""
    return Choice(point, [], settled=False, chosen={}, arms=[])


def value(config: Config, key: str) -> Any:
    """Return the value of a dotted key; None if the config has no such key."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def at(point: GridPoint, values: Mapping[str, Any]) -> GridPoint:
    """Return the point with these values of dotted keys, in every arm that has the key.

    Raises BadInput for a value that no trial can have.
    """
    others = [word for word in point.overrides if word.split("=")[0] not in values]
    words = [f"{key}={_word(new)}" for key, new in values.items()]
    configs = {arm: _with(config, values) for arm, config in point.configs.items()}
    return replace(point, overrides=[*others, *words], configs=configs)


def _word(new: Any) -> str:
    return f"{new:g}" if isinstance(new, float) else str(new)


def _with(config: Config, values: Mapping[str, Any]) -> Config:
    changed = deepcopy(config)
    for key, new in values.items():
        if value(config, key) is not None:
            *path, last = key.split(".")
            node = changed
            for part in path:
                node = node[part]
            node[last] = new
    return validate(_with_as_many_tokens(changed, config))


def _with_as_many_tokens(changed: Config, before: Config) -> Config:
    """Return the changed config, trained on as many tokens as `before` whatever its batch size."""
    if changed["num_updates"] is None or all(changed[key] == before[key] for key in SIZES):
        return changed
    old, new = (config["batch_size"] * config["seq_len"] for config in (before, changed))
    return {**changed, "num_updates": max(1, round(changed["num_updates"] * old / new))}
