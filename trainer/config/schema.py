"""What a trial's config may hold: keys, types, ranges; and the rules that span several keys.

The schema of a choice (a node with `_target_`) is the signature of its target: the keyword-only
parameters are its keys, their annotations its types and ranges. So nothing is declared twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from annotated_types import Ge, Gt
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from trainer.build import locate
from trainer.combinations import check_combinations
from trainer.errors import BadInput

Count = Annotated[int, Ge(1)]
Choice = dict[str, Any]


class TrialConfig(BaseModel):
    """The keys of a trial beside its choices; conf/config.yaml says what they mean."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: Choice
    data: Choice
    optimizer: Choice
    pipeline: Choice
    correction: Choice
    lr_schedule: Choice

    batch_size: Count
    seq_len: Count
    num_updates: Count | None
    tokens_per_parameter: Annotated[float, Gt(0)] | None
    clip_norm: Annotated[float, Gt(0)] | None
    clip_scope: Literal["global", "stage"]
    seed: Annotated[int, Ge(0)]

    eval_every: Count
    eval_batch_size: Count
    checkpoint_every: Count
    save_final: bool
    results: str
    out: str | None

    runner: Literal["emulated", "pipelined"]
    num_replicas: Count
    timeout: Annotated[float, Gt(0)]
    trace: bool
    diagnostics: Count | None
    device: str
    dtype: Literal["float32", "bfloat16"]
    num_threads: Count
    resume_from: str | None
    compile: bool


def validate(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with numbers in their declared type (so that 1 and 1.0 name the same trial).

    Raises BadInput for an unknown or missing key, a wrong type, a value out of range, or keys that
    contradict each other.
    """
    checked = _check(TrialConfig, config, prefix="")
    choices = {key: node for key, node in checked.items() if isinstance(node, dict)}
    for key, node in choices.items():
        checked[key] = check_choice(key, node)
    for key in ("results", "out"):
        require_folder(key, checked[key] or "")
    _check_length(checked)
    _check_batch(checked)
    check_combinations(checked)
    return checked


def check_choice(key: str, node: Choice) -> Choice:
    """The node of one choice, checked against its target's signature; raises BadInput."""
    path = node.get("_target_")
    try:
        target = locate(str(path))
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"{key}._target_", path, f"must be importable ({error})") from None
    options = {name: value for name, value in node.items() if name != "_target_"}
    return {"_target_": path, **_check(_schema(target), options, prefix=f"{key}.")}


@cache
def _schema(target: Any) -> type[BaseModel]:
    """A model of the target's keyword-only parameters."""
    function = target.__init__ if inspect.isclass(target) else target
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ...)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
    return create_model(target.__name__, __config__=config, **fields)


def _check(schema: type[BaseModel], values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    try:
        return schema.model_validate(dict(values)).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        key = prefix + str(first["loc"][0])
        given = "missing" if first["type"] == "missing" else first["input"]
        known = f" (known: {', '.join(schema.model_fields)})" if "extra" in first["type"] else ""
        raise BadInput(key, given, first["msg"] + known) from None


def require_folder(key: str, value: str) -> None:
    """Raises BadInput for the URL of an object store: a lease cannot be held there."""
    if "://" in value:
        allowed = "must be a folder, of a shared file system if need be: a lease needs exclusive "
        raise BadInput(key, value, f"{allowed}creation, which object stores do not offer")


def _check_length(config: Mapping[str, Any]) -> None:
    if (config["num_updates"] is None) == (config["tokens_per_parameter"] is None):
        raise BadInput(
            "num_updates",
            config["num_updates"],
            f"set exactly one of num_updates and tokens_per_parameter "
            f"(={config['tokens_per_parameter']}); the other must be null",
        )


def _check_batch(config: Mapping[str, Any]) -> None:
    microbatches, replicas = config["pipeline"]["num_microbatches"], config["num_replicas"]
    if config["batch_size"] % (microbatches * replicas):
        of_replicas = f" times num_replicas={replicas}" if replicas > 1 else ""
        raise BadInput(
            "batch_size",
            config["batch_size"],
            f"must be divisible by pipeline.num_microbatches={microbatches}{of_replicas}",
        )
