"""The tracker of a sweep's trials: conf/tracking/<name>.yaml, changed by the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import yaml
from annotated_types import Interval
from pydantic import TypeAdapter, ValidationError

from sweeps.tracking.background import Background
from sweeps.tracking.tracker import About
from trainer.base.build import Node, build
from trainer.base.cli import one_of
from trainer.base.errors import BadInput
from trainer.base.places import CONF
from trainer.config.schema import check_choice
from trainer.config.words import parse_value

GROUP = "tracking"
Seconds = Annotated[float, Interval(ge=0, le=1e8)]


@dataclass(frozen=True)
class Tracking:
    """A tracker for trials."""

    node: Node
    """`_target_` and its keys."""
    wait: float
    """Seconds that a trial's end waits for its tracker."""

    def of(
        self,
        trial_id: str,
        arm: str,
        config: Mapping[str, Any],
        *,
        setting: str = "",
        sweeps: Sequence[str],
    ) -> Background:
        """The background tracker of one attempt at a trial; the rest is described in `About`."""
        about = About(trial_id, tuple(sweeps), arm, setting, config, self.wait)
        return Background(partial(build, self.node, about), self.wait)


def known() -> list[str]:
    """The names of all trackers in conf/tracking, sorted."""
    return sorted(file.stem for file in (CONF / GROUP).glob("*.yaml"))


def take(given: dict[str, str]) -> Tracking:
    """Removes `tracking` and `tracking.KEY` from `given`; returns the tracker that they choose.

    Raises BadInput for an unknown name or key, or a value that the tracker does not allow.
    """
    name = given.pop(GROUP, "none")
    if name not in known():
        raise one_of(GROUP, name, known())
    keys = {key for key in given if key.startswith(f"{GROUP}.")}
    changes = {key.partition(".")[2]: parse_value(key, given.pop(key)) for key in keys}
    return make_tracking({**_load(name), **changes})


def make_tracking(node: dict[str, Any]) -> Tracking:
    """The tracker of a node with `_target_`, `wait` and the target's keys; raises BadInput."""
    keys = dict(node)
    wait = keys.pop("wait")
    try:
        wait = TypeAdapter(Seconds).validate_python(wait, strict=True)
    except ValidationError:
        raise BadInput(f"{GROUP}.wait", wait, "must be seconds, from 0 to 1e8") from None
    return Tracking(check_choice(GROUP, keys), wait)


def _load(name: str) -> dict[str, Any]:
    node: dict[str, Any] = yaml.safe_load((CONF / GROUP / f"{name}.yaml").read_text())
    return node
