"""Which settings, each of them valid, do not go together, and why: all of them in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.base.build import label
from trainer.base.errors import BadInput
from trainer.models.recipe import Recipe
from trainer.schedules.operations import Schedule

Config = Mapping[str, Any]

ABSOLUTE = (
    "its average is made of weights and not of updates, which a change beside its own steps breaks"
)
REJECTED: Mapping[tuple[str, str], str] = {
    ("schedule_free_adamw", correction): ABSOLUTE
    for correction in ("error_feedback", "adaptive_error_feedback", "matched_error_feedback")
}
"""Optimizer and correction → why not."""


def check_combinations(config: Config) -> None:
    """Raises BadInput for keys that are valid alone and contradict each other."""
    optimizer, correction = label(config["optimizer"]), label(config["correction"])
    if (optimizer, correction) in REJECTED:
        why = REJECTED[optimizer, correction]
        raise BadInput("correction", correction, f"not with optimizer={optimizer}: {why}")
    if config["trace"] and config["runner"] == "emulated":
        raise BadInput("trace", True, "needs runner=pipelined: only ranks wait for each other")
    if config["trace"] and config["diagnostics"] is not None:
        raise BadInput(
            "trace",
            True,
            "needs diagnostics=null: its probes would be in the picture",
        )


def check_backward(model: Recipe, schedule: Schedule) -> None:
    """Raises BadInput for a model whose backward the schedule cannot cut in halves."""
    if schedule.splits_backward and model.activation_checkpointing:
        allowed = "must be false with a schedule that splits backwards: they cannot recompute"
        raise BadInput("model.activation_checkpointing", True, allowed)
