"""Points with other values of some keys: what tuning and searching try."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from sweeps.request.expand import Point, Trial
from sweeps.request.schema import Config
from trainer.base.errors import BadInput
from trainer.config.schema import validate

SIZES = ("batch_size", "seq_len")
"""Keys of the size of a batch: a point trains on the same number of tokens with any."""


class Tried(ABC):
    """A point at which settings are tried before its arms run."""

    settled: bool
    """Whether they are chosen."""
    arms: list[Trial]
    """The trials at what was chosen, or an estimate of them."""

    @property
    @abstractmethod
    def choosing(self) -> list[Trial]:
        """The trials that choose, as far as they are known."""

    @property
    def runnable(self) -> list[Trial]:
        """The trials that can run now."""
        return [*self.choosing, *(self.arms if self.settled else [])]

    @property
    def planned(self) -> list[Trial]:
        """All trials, as far as they are known."""
        return [*self.choosing, *self.arms]


def number(point: Point, key: str) -> float:
    """The value of `key` in the point's sync arm.

    Raises BadInput if it is no number, or 0, of which every multiple is 0.
    """
    found = value(point.configs["sync"], key)
    if isinstance(found, bool) or not isinstance(found, int | float) or found == 0:
        raise BadInput("sweep.tune", key, f"must be a number other than 0 in the config ({found})")
    return found


def value(config: Config, key: str) -> Any:
    """The value of a dotted key; None if the config has no such key."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def at(point: Point, values: Mapping[str, Any]) -> Point:
    """The point with these values of dotted keys, in every arm that has the key.

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
    """Trained on as many tokens as `before`, whatever the size of a batch is now."""
    if changed["num_updates"] is None or all(changed[key] == before[key] for key in SIZES):
        return changed
    sizes = (config["batch_size"] * config["seq_len"] for config in (before, changed))
    old, new = sizes
    return {**changed, "num_updates": max(1, round(changed["num_updates"] * old / new))}
