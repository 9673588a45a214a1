"""Which tracker a sweep's trials have: conf/tracking/<name>.yaml and the command line's changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import yaml
from annotated_types import Ge
from pydantic import TypeAdapter, ValidationError

from sweeps.tracking.background import Background
from sweeps.tracking.tracker import About
from trainer.build import Node, build
from trainer.compose import CONF
from trainer.config import check_choice
from trainer.errors import BadInput

GROUP = "tracking"


@dataclass(frozen=True)
class Tracking:
    """A tracker for the trials of one sweep."""

    node: Node
    """`_target_` and its keys."""
    wait: float
    """Seconds that a trial's end waits for its tracker."""
    sweep: str

    def of(self, trial_id: str, arm: str, config: Mapping[str, Any]) -> Background:
        """What tracks one attempt at a trial."""
        about = About(trial_id, self.sweep, arm, config, self.wait)
        return Background(partial(build, self.node, about), self.wait)


def known() -> list[str]:
    """The names of all trackers."""
    return sorted(file.stem for file in (CONF / GROUP).glob("*.yaml"))


def take(given: dict[str, str], sweep: str) -> Tracking:
    """Takes `tracking` and `tracking.KEY` out of the words of a command line.

    Raises BadInput for an unknown name or key, or a value that the tracker does not allow.
    """
    name = given.pop(GROUP, "none")
    if name not in known():
        raise BadInput(GROUP, name, f"must be one of {', '.join(known())}")
    keys = {key for key in given if key.startswith(f"{GROUP}.")}
    changes = {key.partition(".")[2]: _value(key, given.pop(key)) for key in keys}
    return tracking({**_load(name), **changes}, sweep)


def tracking(node: dict[str, Any], sweep: str) -> Tracking:
    """The tracker that a node of `_target_`, `wait` and the target's keys stands for, checked."""
    keys = dict(node)
    wait = keys.pop("wait")
    try:
        wait = TypeAdapter(Annotated[float, Ge(0)]).validate_python(wait, strict=True)
    except ValidationError:
        raise BadInput(f"{GROUP}.wait", wait, "must be seconds, 0 or more") from None
    return Tracking(check_choice(GROUP, keys), wait, sweep)


def _load(name: str) -> dict[str, Any]:
    node: dict[str, Any] = yaml.safe_load((CONF / GROUP / f"{name}.yaml").read_text())
    return node


def _value(key: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(key, text, f"must be YAML ({' '.join(str(error).split())})") from None
