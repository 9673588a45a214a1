"""Which arm and which point of the swept settings a trial belongs to, from its config alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.build import label
from trainer.identity import CHANGES_NO_NUMBER

Config = Mapping[str, Any]

NAMES = {"pipedream_2bw": "delay", "constant_delay": "constant_delay({delay})"}
"""What a delayed pipeline is called in an arm, where that is not its label."""

CORRECTIONS = {"none": "", "error_feedback": "_ef({coefficient:g})"}
"""What a correction adds to that."""

OF_THE_ARM = ("pipeline", "correction", "seed")
"""Keys in which the trials of one point differ."""


def arm(config: Config, delays: Sequence[int] | None) -> str:
    """`sync`, `delay`, `delay_ef`, `delay_ef(0.5)`, `pipedream`, `delay+start(100)`, …

    `sync` is what has no counted delay on any stage, whatever made it.
    """
    plain = plain_arm(config, delays)
    if plain == "sync":
        return plain
    node = config["correction"]
    form = CORRECTIONS.get(label(node), f"_{label(node)}")
    name, plus, phases = plain.partition("+")
    return (name + form.format(**node)).replace("_ef(1)", "_ef") + plus + phases


def plain_arm(config: Config, delays: Sequence[int] | None) -> str:
    """The arm of the same pipeline without a correction."""
    node = config["pipeline"]
    name = label(node)
    if name == "sync" or (delays is not None and not any(delays)):
        return "sync"
    phases = {"start": "synchronous_start", "cooldown": "synchronous_cooldown"}
    return NAMES.get(name, name).format(**node) + "".join(
        f"+{short}({node[key]:g})" for short, key in phases.items() if node.get(key)
    )


def point(config: Config) -> str:
    """Eight digits that name everything but the arm, the seed and what changes no number."""
    kept = {key: value for key, value in config.items() if key not in OF_THE_ARM}
    kept["data"] = {key: value for key, value in config["data"].items() if key != "path"}
    for key in CHANGES_NO_NUMBER:
        kept.pop(key, None)
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]
