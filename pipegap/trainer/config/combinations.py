"""Which settings, each valid alone, do not go together, and why."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipegap.trainer.base.build import label, locate
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


def check_combinations(config: Config) -> None:
    """Raises BadInput for two keys that contradict each other."""
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


def check_averaging(config: Config, correction: "NoCorrection") -> None:
    """Raises BadInput for a correction that moves weights, if the optimizer averages those."""
    from pipegap.trainer.optimizers.routing import is_averaging

    if correction.moves_weights and is_averaging(locate(config["optimizer"]["_target_"])):
        why = f"not with optimizer={label(config['optimizer'])}: {ABSOLUTE}"
        raise BadInput("correction", label(config["correction"]), why)


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
