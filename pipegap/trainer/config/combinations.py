"""Which settings, each valid alone, do not go together, and why."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipegap.trainer.base.build import is_own, label
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.schedules.operations import Schedule

if TYPE_CHECKING:  # torch is slow, and no check of a command's words needs it
    from pipegap.trainer.corrections.none import NoCorrection
    from pipegap.trainer.models.recipe import Recipe

Config = Mapping[str, Any]

COMPILED = "with compile=update: compile=false does without"
ABSOLUTE = (
    "its average is made of weights and not of updates, which a change beside its own steps breaks"
)
REJECTED: Mapping[tuple[str, str], str] = {
    ("schedule_free_adamw", correction): ABSOLUTE
    for correction in (
        *("error_feedback", "adaptive_error_feedback", "matched_error_feedback", "ema_nesterov"),
    )
}
"""Optimizer and correction → why not."""

MADE_BY_GRAPHS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "optimizer": {
        **{name: {} for name in ("adamw", "adan", "lion", "mars", "normuon", "soap")},
        "muon": {"orthogonalisation": "newton_schulz", "cautious_decay": False},
    },
    "correction": {
        **{name: {"lag": 1} for name in ("error_feedback", "matched_error_feedback")},
        **{name: {} for name in ("ema_nesterov", "learning_rate", "none")},
    },
}
"""Choices of the trainer that are part of the graphs of `compile=update`, and with which options.

`trainer.compiled.chosen` decides it, and knows it of what is built; a plan builds nothing.
"""


def check_combinations(config: Config) -> None:
    """Raises BadInput for two keys that contradict each other."""
    optimizer, correction = label(config["optimizer"]), label(config["correction"])
    if (optimizer, correction) in REJECTED:
        why = REJECTED[optimizer, correction]
        raise BadInput("correction", correction, f"not with optimizer={optimizer}: {why}")
    _check_compiled_experts(config)
    _check_fused(config)
    if config["trace"] and config["runner"] == "emulated":
        raise BadInput("trace", True, "needs runner=pipelined: only ranks wait for each other")
    if config["trace"] and config["diagnostics"] is not None:
        raise BadInput("trace", True, "needs diagnostics=null: its probes would be in the picture")


def _check_compiled_experts(config: Config) -> None:
    """Raises BadInput for compiled products of experts in fp32, which torch's compiler refuses."""
    if config["compile"] is not True or "num_experts" not in config["model"]:
        return
    for key in ("dtype", "eval_dtype"):
        if config[key] != "bfloat16":
            allowed = "must be bfloat16 with experts and compile=true: torch compiles no other"
            raise BadInput(key, config[key], allowed)


def _check_fused(config: Config) -> None:
    """Raises BadInput for a setting without the fused kernels of a Gated DeltaNet."""
    if not config["model"].get("fused_delta_rule"):
        return
    for key, holds, allowed in (
        ("device", config["device"] != "cpu", "must be a GPU"),
        ("dtype", config["dtype"] == "bfloat16", "must be bfloat16"),
        ("deterministic", not config["deterministic"], "must be false, as Triton times kernels,"),
    ):
        if not holds:
            raise BadInput(key, config[key], f"{allowed} with model.fused_delta_rule=true")


def check_backward(config: Config, model: "Recipe", schedule: Schedule) -> None:
    """Raises BadInput for a model whose backward the schedule cannot cut in halves."""
    if not schedule.splits_backward:
        return
    if config["compile"]:
        allowed = "must be false with a schedule that splits backwards: nearly nothing is compiled"
        raise BadInput("compile", config["compile"], allowed)
    if model.activation_checkpointing:
        allowed = "must be false with a schedule that splits backwards: they cannot recompute"
        raise BadInput("model.activation_checkpointing", True, allowed)


def check_graphs(config: Config, model: "Recipe", correction: "NoCorrection") -> None:
    """Raises BadInput for a setting that `compile=update` does not have."""
    if config["compile"] != "update":
        return
    correction_name = label(config["correction"])
    recomputes = model.activation_checkpointing
    architecture, is_dense = label(config["model"]), "num_experts" not in config["model"]
    for key, value, holds, allowed in (
        ("model", architecture, is_dense, "must have no experts, since 0.3.0,"),
        ("device", config["device"], config["device"] == "cpu", "must be cpu"),
        ("runner", config["runner"], config["runner"] == "emulated", "must be emulated"),
        ("diagnostics", config["diagnostics"], config["diagnostics"] is None, "must be null"),
        ("model.activation_checkpointing", recomputes, not recomputes, "must be false"),
        ("correction", correction_name, not correction.reads_ahead, "must not read ahead"),
    ):
        if not holds:
            raise BadInput(key, value, f"{allowed} {COMPILED}")


def require_graphs(config: Config) -> None:
    """Raise BadInput for a choice that `compile=update` leaves to the code of `compile=false`."""
    if config["compile"] != "update":
        return
    for group, made in MADE_BY_GRAPHS.items():
        node = config[group]
        name, is_ours = label(node), is_own(node["_target_"])
        if not is_ours or name not in made:
            raise BadInput(group, name, f"must be one of {', '.join(sorted(made))} {COMPILED}")
        for key, value in made[name].items():
            if node.get(key, value) != value:
                allowed = f"must be {value} with {group}={name} {COMPILED}"
                raise BadInput(f"{group}.{key}", node[key], allowed)


def check_in_place(config: Config, schedule: Schedule, correction: "NoCorrection") -> None:
    """Raises BadInput for a setting that a schedule with weights updated in place rules out."""
    if not schedule.in_place:
        return
    pipeline = label(config["pipeline"])
    if config["compile"]:
        allowed = f"must be false with pipeline={pipeline}: compiled passes may copy weights"
        raise BadInput("compile", config["compile"], allowed)
    if config["model"].get("activation_checkpointing"):
        allowed = f"must be false with pipeline={pipeline}: a second forward reads newer weights"
        raise BadInput("model.activation_checkpointing", True, allowed)
    from pipegap.trainer.corrections.none import NoCorrection

    if type(correction) is not NoCorrection:
        why = "its gradients mix versions, which have no one delay"
        allowed = f"must be none with pipeline={pipeline}: {why}"
        raise BadInput("correction", label(config["correction"]), allowed)
