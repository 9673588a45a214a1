"""Every correction of conf/correction/, and whole runs of it beside its reference."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from pipegap.trainer.base.build import build, locate
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.compose import compose
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.recipes import constant_delay, pipedream, sync
from tests.oracles import corrections as references
from tests.support import toy
from tests.support.delayed import PHASES, SGD_OF_DELAYED, T, expected_of_stages

NAMES = sorted(path.stem for path in (CONF / "correction").glob("*.yaml"))
Make = Callable[[int, Sequence[int]], NoCorrection]


def settings(name: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Its YAML, with `changes`."""
    words = [f"correction.{key}={value}" for key, value in (changes or {}).items()]
    return compose([f"correction={name}", *words])["correction"]


def variants(name: str) -> Iterator[dict[str, Any]]:
    """The settings that its reference is tried with; KeyError for a choice without a reference."""
    return (settings(name, changes) for changes in references.REFERENCES[name].settings)


def maker(node: Mapping[str, Any]) -> Make:
    """Makes the correction of such settings."""
    return partial(build, node)


def located(node: Mapping[str, Any]) -> partial[NoCorrection]:
    """Its class with such settings, as code names it."""
    return partial(locate(node["_target_"]), **{k: v for k, v in node.items() if k != "_target_"})


def looks_ahead(name: str) -> bool:
    """Whether it acts where nothing is late, too."""
    made: NoCorrection = build(settings(name), T, [1])
    return made.looks_ahead


def reference(name: str, node: Mapping[str, Any]) -> references.Plain:
    """The reference with such settings."""
    return references.REFERENCES[name](SimpleNamespace(**node), T)


@dataclass(frozen=True)
class Setting:
    """A schedule of T updates, by which batches first … last − 1 are delayed."""

    schedule: Schedule
    first: int = 0
    last: int = T

    def version(self, t: int, lag: int) -> int:
        """What the design says that batch t reads."""
        return max(self.first, t - lag) if self.first <= t < self.last else t


ONE_STAGE = {"num_stages": 1, "num_microbatches": 1}
BETWEEN = {"synchronous_start": 3, "synchronous_cooldown": 2}
SETTINGS = {
    "no delay": Setting(sync(T, **ONE_STAGE)),
    "a delay of 1": Setting(constant_delay(T, delay=1, **ONE_STAGE, **PHASES)),
    "a delay of 3": Setting(constant_delay(T, delay=3, **ONE_STAGE, **PHASES)),
    "a delay of 3 between": Setting(constant_delay(T, delay=3, **ONE_STAGE, **BETWEEN), 3, T - 2),
    "delays of 3, 2, 1 and 0": Setting(
        pipedream(T, num_stages=4, num_microbatches=1, **BETWEEN), 3, T - 2
    ),
}


def error(make: Make, oracle: references.Plain, setting: Setting) -> float:
    """How far the trainer ends from the reference, as a share of the way it went.

    SGD with momentum in fp64, with a clip that acts.
    """
    schedule = setting.schedule
    executor = toy.emulated(schedule, SGD_OF_DELAYED, make, clip_norm=0.5)
    toy.run(executor, schedule.phases)
    key = type(oracle), repr(sorted(vars(oracle.o).items())), oracle.T, setting
    if key not in _ENDS:
        _ENDS[key] = _ends(oracle, setting)
    start, theirs = _ENDS[key]
    return float((_flat(toy.weights(executor)) - theirs).norm() / (theirs - start).norm())


_ENDS: dict[object, tuple[torch.Tensor, torch.Tensor]] = {}
"""Where a reference begins and ends, once for all that is compared with it."""


def _ends(oracle: references.Plain, setting: Setting) -> tuple[torch.Tensor, torch.Tensor]:
    history, _ = expected_of_stages(
        SGD_OF_DELAYED,
        torch.float64,
        setting.schedule.lags,
        setting.version,
        oracle,
        clip_norm=0.5,
        microbatches=setting.schedule.num_microbatches,
    )
    return _flat(history[0]), _flat(history[-1])


def _flat(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in weights])
