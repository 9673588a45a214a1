"""What a trial's config may hold: keys, types, ranges, and which settings go together."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from annotated_types import Gt, Interval
from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError, create_model
from pydantic_core import ErrorDetails

from pipegap.trainer.base.build import (
    in_short,
    is_own,
    label,
    locate,
    published,
    refuse_hidden,
    use_code,
)
from pipegap.trainer.base.errors import BadInput, closest_first
from pipegap.trainer.base.former import YOUNGER, is_dropped, refuse_dropped_choice
from pipegap.trainer.base.places import require_folder
from pipegap.trainer.base.ranges import Count, Few, Place, Rows, Seed
from pipegap.trainer.config.identity import GROUPS, names, refuse_own_loop
from pipegap.trainer.schedules.operations import Schedule

if TYPE_CHECKING:  # torch is slow, and no check of a command's words needs it
    from pipegap.trainer.corrections.none import NoCorrection
    from pipegap.trainer.models.decoder import Recipe


# Settings that do not go together, though each is valid alone.

Config = Mapping[str, Any]

COMPILED = "with compile=update: compile=false does without"


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
    """Raises BadInput for a setting for which a Gated DeltaNet has no fused kernels."""
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
    """Raises BadInput for a setting that `compile=update` does not support."""
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
    """Raises BadInput for a correction that moves weights, if the optimizer averages weights."""
    # Not at the top: the module of optimizers imports torch.
    from pipegap.trainer.optimizers.routing import is_averaging

    if correction.moves_weights and is_averaging(locate(config["optimizer"]["_target_"])):
        optimizer = label(config["optimizer"])
        why = "its average is made of weights and not of updates, which a change beside its own"
        allowed = f"not with optimizer={optimizer}: {why} steps breaks"
        raise BadInput("correction", label(config["correction"]), allowed)


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


# Keys, types and ranges. The schema of a choice (a node with `_target_`) is the signature of its
# target: the keyword-only parameters are its keys, their annotations its types and ranges. So
# nothing is declared twice. `choices` has the names of the choices, for tables and figures.

Choice = dict[str, Any]
BF16_PRODUCTS = ("avx512_bf16", "amx_bf16")
"""torch's names of processor instructions with which products are faster in bfloat16."""


def _compile(value: object) -> bool | str:
    """Checks `compile`. `layers` is recorded as true, its name before there was `update`."""
    if isinstance(value, bool):
        return value
    if value == "update":
        return "update"
    if value != "layers":
        raise ValueError("must be false, layers (or true) or update")
    return True


class TrialConfig(BaseModel):
    """The keys of a trial except those of its choices; conf/config.yaml says what they mean."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    choices: dict[str, Any] | None = None
    model: Choice
    data: Choice
    optimizer: Choice
    pipeline: Choice
    correction: Choice
    lr_schedule: Choice

    batch_size: Rows
    seq_len: Rows
    num_updates: Count | None
    tokens_per_parameter: Annotated[float, Interval(gt=0, le=1e6)] | None
    clip_norm: Annotated[float, Gt(0)] | None
    clip_scope: Literal["global", "stage"]
    seed: Seed

    eval_every: Count
    eval_batch_size: Rows
    eval_tokens: Count | None = YOUNGER["eval_tokens"]
    eval_dtype: Literal["float32", "bfloat16"] = YOUNGER["eval_dtype"]
    checkpoint_every: Count
    save_final: bool
    save_last: Annotated[int, Interval(ge=0, le=4_096)] = YOUNGER["save_last"]
    results: str
    out: str | None

    runner: Literal["emulated", "pipelined"]
    num_replicas: Few
    timeout: Annotated[float, Interval(gt=0, le=1e8)]
    trace: bool
    diagnostics: Count | None
    device: str
    dtype: Literal["auto", "float32", "bfloat16"]
    deterministic: bool = YOUNGER["deterministic"]
    num_threads: Few
    code: Place | None = YOUNGER["code"]
    resume_from: Place | None
    from_pretrained: Place | None = YOUNGER["from_pretrained"]
    compile: Annotated[bool | str, PlainValidator(_compile)]


NAMES: dict[str, Any] = dict.fromkeys(GROUPS, (str, ...))
STRICT = ConfigDict(extra="forbid", strict=True)
ChoiceNames = create_model("ChoiceNames", __config__=STRICT, **NAMES)
"""The names in conf/ of a trial's choices."""


def validate(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a checked copy of `config`.

    Numbers of the copy have their declared type (so that 1 and 1.0 name one trial). Choices have
    their published addresses. Missing names of choices are filled in. `dtype=auto` becomes the
    dtype that is fast on this machine.

    Raises BadInput for an unknown or missing key, a wrong type, a value out of range, or keys that
    contradict each other.
    """
    refuse_own_loop(config)
    current_keys = {key: value for key, value in config.items() if not is_dropped(key, value)}
    checked = _check(TrialConfig, current_keys, prefix="")
    use_code(checked["code"])  # before the choices, which may be classes of that folder
    for group in GROUPS:
        checked[group] = check_choice(group, checked[group], checked["code"])
    if checked["choices"] is not None:
        _check(ChoiceNames, checked["choices"], prefix="choices.")
    checked["choices"] = names(checked)
    checked["dtype"] = _resolved_dtype(
        checked["dtype"], checked["device"], has_experts="num_experts" in checked["model"]
    )
    # A trial in an object store has a URL as `results`, and runs in the folder `out`.
    place = "results" if checked["out"] is None else "out"
    require_folder(place, checked[place])
    _check_length(checked)
    _check_batch(checked)
    check_combinations(checked)
    return checked


def _resolved_dtype(name: str, device: str, *, has_experts: bool) -> str:
    """Returns the dtype `name`, or for auto the dtype of the fastest products.

    That is bfloat16 on a GPU, and on a CPU that has instructions for bfloat16. On other CPUs
    bfloat16 is slower than float32, and for experts on any CPU, because torch compiles a product
    for each number of tokens that an expert gets.
    """
    if name != "auto":
        return name
    if device != "cpu":
        return "bfloat16"
    if has_experts:
        return "float32"
    import torch  # slow, and a command that only reads a store asks for no dtype

    has: Mapping[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # of newer torch
    return "bfloat16" if any(has.get(name) for name in BF16_PRODUCTS) else "float32"


def check_choice(key: str, node: Choice, code: str | None = None) -> Choice:
    """Returns the node of one choice, checked against its target's signature; raises BadInput.

    `code` is the folder of the user's own code.
    """
    path = str(node.get("_target_"))
    if is_own(path):
        refuse_dropped_choice(key, label(node))
    try:
        schema = _schema(locate(path))
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        # An installed module of the same name may be why: that is the better refusal.
        refuse_hidden(code, path)
        raise BadInput(f"{key}._target_", path, f"must be importable ({in_short(error)})") from None
    refuse_hidden(code, path)
    options = {name: value for name, value in node.items() if name != "_target_"}
    return {"_target_": published(path), **_check(schema, options, prefix=f"{key}.")}


@cache
def _schema(target: Any) -> type[BaseModel]:
    """Returns a pydantic model of the target's keyword-only parameters.

    Raises TypeError or ValueError for a target whose signature Python cannot read.
    """
    function = target.__init__ if inspect.isclass(target) else target
    # The fields of a dataclass may be annotated in the module of a base class.
    annotated = target if is_dataclass(target) else function
    hints = get_type_hints(annotated, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name in hints
    }
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
    return create_model(target.__name__, __config__=config, **fields)


def _check(schema: type[BaseModel], values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    try:
        return schema.model_validate(dict(values)).model_dump()
    except ValidationError as error:
        first = first_of(error)
        value_text = "missing" if first["type"] == "missing" else first["input"]
        raise BadInput(f"{prefix}{first['loc'][0]}", value_text, in_words(first, schema)) from None


def first_of(error: ValidationError) -> ErrorDetails:
    """Returns the error to report: a misspelt key before the key that is missing because of it."""
    errors = error.errors()
    return next((details for details in errors if details["type"] != "missing"), errors[0])


def in_words(error: ErrorDetails, schema: type[BaseModel]) -> str:
    """Returns what is allowed where the `schema` has this error, in our words, not pydantic's."""
    if error["type"] == "extra_forbidden":
        closest_keys = closest_first(str(error["loc"][-1]), schema.model_fields)
        return f"must be a known key (known: {', '.join(closest_keys)})"
    if error["type"] == "missing":
        return "is required"
    message = error["msg"].removeprefix("Value error, ")  # of a validator of ours
    return re.sub(r"^(Input|\w+) should", "must", message)


def _check_length(config: Mapping[str, Any]) -> None:
    if (config["num_updates"] is None) == (config["tokens_per_parameter"] is None):
        tokens_text = f"tokens_per_parameter (={config['tokens_per_parameter']})"
        allowed = f"set exactly one of num_updates and {tokens_text}; the other must be null"
        raise BadInput("num_updates", config["num_updates"], allowed)


def _check_batch(config: Mapping[str, Any]) -> None:
    for key in ("num_stages", "num_microbatches"):
        if key not in config["pipeline"]:
            path = config["pipeline"]["_target_"]
            raise BadInput("pipeline._target_", path, f"must take the keyword {key}")
    microbatches, replicas = config["pipeline"]["num_microbatches"], config["num_replicas"]
    if config["batch_size"] % (microbatches * replicas):
        times = f" times num_replicas={replicas}" if replicas > 1 else ""
        allowed = f"must be divisible by pipeline.num_microbatches={microbatches}{times}"
        raise BadInput("batch_size", config["batch_size"], allowed)
