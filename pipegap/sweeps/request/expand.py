"""A sweep at a scale → the trials that it asks for, validated, each once."""

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipegap.sweeps.request.schema import Config, Sweep, keys, overrides
from pipegap.sweeps.tracking.tracker import run_name
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.config.identity import CHANGES_NO_NUMBER
from pipegap.trainer.config.schema import validate
from pipegap.trainer.data.tokenizers import ENCODERS
from pipegap.trainer.folder.wellformed import trial_folder

if TYPE_CHECKING:
    from pipegap.trainer.config.plan import Plan, Planner

SIZES = ("batch_size", "seq_len")
"""Keys of the size of a batch: a point trains on the same number of tokens with any."""
IS_PATH: Mapping[str, Callable[[str], bool]] = {
    "path": lambda word: True,
    "shards": lambda word: True,
    "name": os.path.isdir,
    "tokenizer": lambda word: word not in ENCODERS and os.path.exists(word),
}
"""Key of data → whether a word is a path there, and not a name."""
LENGTHS = ("num_updates", "tokens_per_parameter")
"""Keys of the length of a trial."""
OF_ARMS = {
    *("pipeline", "correction", "choices", "runner", "device", "num_threads", "diagnostics"),
    *LENGTHS,
    *CHANGES_NO_NUMBER,
}
"""Keys in which arms may differ: staleness, how it is corrected, and what changes no number; and
the length, since delayed runs are compared with sync's that take the same time."""


@dataclass(frozen=True)
class Trial:
    """One trial that a sweep asks for."""

    arm: str
    config: dict[str, Any]
    plan: "Plan"
    setting: str = ""
    """The values of the swept keys, in words, without the optimizer; empty if unknown."""
    sweeps: tuple[str, ...] = ()
    """Labels of the sweeps that ask for it."""

    @property
    def name(self) -> str:
        """Its name for people: `muon optimizer.lr=0.01 delay_ef seed 2`."""
        return run_name(self.config, self.setting, self.arm)

    @property
    def trial_id(self) -> str:
        """Its id."""
        return self.plan.trial_id

    @property
    def folder(self) -> Path:
        """Where it is recorded."""
        return trial_folder(self.config, self.plan.trial_id)


class Expected(NamedTuple):
    """What trials are expected to take before any of them says it."""

    seconds: Mapping[str, float]
    """Id → seconds of each trial."""
    compiler: float
    """Seconds by the clock that the first trials compile before they train."""
    measured: Collection[str] = ()
    """Ids of the trials whose seconds come from finished trials of their shape. The seconds of the
    others are counted."""


@dataclass(frozen=True)
class GridPoint:
    """One setting of the swept keys: its overrides, and the config of each arm, seeds aside."""

    overrides: list[str]
    configs: dict[str, Config]
    plan: "Planner" = field(compare=False, repr=False)  # one for all points: it caches
    sweep: str = ""
    """Label of the sweep."""

    @property
    def setting(self) -> str:
        """The overrides without the optimizer's name."""
        return " ".join(word for word in self.overrides if word.split("=")[0] != "optimizer")

    def at(self, values: Mapping[str, Any]) -> "GridPoint":
        """Return the point with these values of dotted keys, in every arm that has the key.

        Raises BadInput for a value that no trial can have.
        """
        other_words = [word for word in self.overrides if word.split("=")[0] not in values]
        words = [
            f"{key}={new:g}" if isinstance(new, float) else f"{key}={new}"
            for key, new in values.items()
        ]
        # The words are for people and may be rounded; the configs get the values themselves.
        configs = {arm: _with(config, values) for arm, config in self.configs.items()}
        return replace(self, overrides=[*other_words, *words], configs=configs)

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Return every arm at every seed; raises BadInput for an impossible trial."""
        from pipegap.trainer.compiled.rules import require_graphs  # torch is slow

        trials = []
        for arm, config in self.configs.items():
            require_graphs(config)  # else a part of a comparison would not be compiled
            for seed in seeds:
                seeded = {**config, "seed": seed}
                plan = self.plan(seeded)
                trials.append(Trial(arm, seeded, plan, self.setting, (self.sweep,)))
        return trials


def points(sweep: Sweep, results: Path, compose: Composer | None = None) -> list[GridPoint]:
    """Return every combination of the grid's values; raises BadInput for an impossible one.

    Paths become absolute: a worker runs in a folder of its own. One `compose` for several sweeps
    composes what they share once.
    """
    from pipegap.trainer.config.plan import Planner  # torch is slow

    axes = [[overrides(key, value) for value in values] for key, values in sweep.grid.items()]
    compose, plan = compose or Composer(), Planner()
    swept_points = []
    for combination in product(*axes):
        swept = [word for words in combination for word in words]
        # The last word of a key counts: an arm may replace what `base` sets, and so may an axis.
        try:
            composed = {
                arm: compose([*sweep.base, *swept, *words]) for arm, words in sweep.arms.items()
            }
        except BadInput as error:
            if not isinstance(error.value, list):
                raise
            # Whoever writes a list for one value means a grid.
            allowed = f"{error.allowed}; for several values say grid.{error.key}=[…]"
            raise BadInput(error.key, error.value, allowed) from None
        for arm, config in composed.items():
            sync = composed["sync"]
            if any(config[key] != sync[key] for key in LENGTHS):
                # An option may follow the length, as `${num_updates}` does.
                length = [f"{key}={json.dumps(config[key])}" for key in LENGTHS]
                sync = compose([*sweep.base, *swept, *sweep.arms["sync"], *length])
            _check_recipe(config, sync, arm)
        if {*keys(swept)} & {*SIZES}:
            base_config = compose(sweep.base)
            composed = {arm: _with_as_many_tokens(c, base_config) for arm, c in composed.items()}
        configs = {arm: placed(config, results) for arm, config in composed.items()}
        swept_points.append(GridPoint(swept, configs, plan))
    _check_arms(swept_points)
    _check_repeats(swept_points)
    return swept_points


def _check_recipe(config: Config, sync: Config, arm: str) -> None:
    """Raises BadInput for an arm whose config differs from sync's in more than staleness and
    length."""
    if key := next((k for k in sorted({*config} - OF_ARMS) if config[k] != sync[k]), None):
        allowed = f"must be that of sync, {sync[key]}: arms differ in staleness only"
        raise BadInput(f"sweep.arms.{arm}", f"{key}={config[key]}", allowed)


def _check_arms(points: Iterable[GridPoint]) -> None:
    """Raises BadInput for an arm that differs from sync in neither staleness nor length."""
    # arm → whether it is late, or has another length, at some point: at others it may be sync.
    acts: dict[str, bool] = {}
    for point in points:
        sync = point.configs["sync"]
        sync_updates = point.plan(sync).num_updates
        for arm, config in point.configs.items():
            plan = point.plan(config)
            is_late = plan.is_delayed or plan.looks_ahead
            acts[arm] = acts.get(arm, False) or is_late or plan.num_updates != sync_updates
    for arm, does_act in acts.items():
        if arm != "sync" and not does_act:
            allowed = "must be late, or have another length, at some point: this is sync again"
            raise BadInput("sweep.arms", arm, allowed)


def _check_repeats(points: Iterable[GridPoint]) -> None:
    """Raises BadInput for two points that ask for the same trials, as 1 and '1' do."""
    first: dict[str, list[str]] = {}
    for point in points:
        resolved = json.dumps(point.configs, sort_keys=True)
        earlier = first.setdefault(resolved, point.overrides)
        if earlier is not point.overrides:  # `is`: the words of two points may be equal
            allowed = f"must not repeat a value: it is the same as {' '.join(earlier)}"
            raise BadInput("sweep.grid", " ".join(point.overrides), allowed)


def placed(config: Config, results: Path) -> Config:
    """Return the config with absolute paths: a trial may run in another folder."""
    data = {
        key: str(Path(value).absolute()) if key in IS_PATH and IS_PATH[key](value) else value
        for key, value in config["data"].items()
    }
    paths = {key: _if_there(config.get(key)) for key in ("code", "from_pretrained")}
    return {**config, "results": str(results.absolute()), "data": data, **paths}


def _if_there(word: str | None) -> str | None:
    """Return the absolute path of a folder; another word, such as a name on a hub, as it is."""
    return str(Path(word).absolute()) if word is not None and os.path.isdir(word) else word


def unique(trials: Iterable[Trial]) -> list[Trial]:
    """Return each trial once, with all sweeps that ask for it, the longest first."""
    first: dict[str, Trial] = {}
    for trial in trials:
        first_trial = first.setdefault(trial.plan.trial_id, trial)
        if not {*trial.sweeps} <= {*first_trial.sweeps}:
            sweeps = tuple(dict.fromkeys((*first_trial.sweeps, *trial.sweeps)))
            first[trial.plan.trial_id] = replace(first_trial, sweeps=sweeps)
    return sorted(first.values(), key=lambda trial: -trial.plan.flops)


def value_of(config: Config, key: str) -> Any:
    """Return the value of a dotted key; None if the config has no such key."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _with(config: Config, values: Mapping[str, Any]) -> Config:
    changed = deepcopy(config)
    for key, new in values.items():
        if value_of(config, key) is not None:  # an arm without the key stays as it is
            *path, last = key.split(".")
            node = changed
            for part in path:
                node = node[part]
            node[last] = new
    return validate(_with_as_many_tokens(changed, config))


def _with_as_many_tokens(changed: Config, config_before: Config) -> Config:
    """Return the changed config, trained on as many tokens as `config_before` with its batches."""
    # Without num_updates the tokens are given per parameter, whatever the size of a batch.
    if changed["num_updates"] is None or all(changed[key] == config_before[key] for key in SIZES):
        return changed
    old, new = (config["batch_size"] * config["seq_len"] for config in (config_before, changed))
    return {**changed, "num_updates": max(1, round(changed["num_updates"] * old / new))}
