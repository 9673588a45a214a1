"""Whether the config.json of a checkpoint says the model that a recipe makes."""

from collections.abc import Mapping
from typing import Any

from pipegap.trainer.base.errors import BadInput, short
from pipegap.trainer.models.checkpoint_files import KEY, published_config
from pipegap.trainer.models.recipe import Pretrained

CHANGES_NOTHING = {"architectures", "initializer_range", "dtype", "bos_token_id", "eos_token_id"}
"""Keys of a published config that the weights and what is made of them do not depend on."""
OURS = {"rope_type": "default", "quantization_config": None, "transformers_weights": None}
"""What holds for all recipes: plain rotary positions, and weights that are the files' numbers."""


def check_config(model: Pretrained, checkpoint: str) -> None:
    """Raises BadInput unless transformers makes this model of the checkpoint's config.json.

    A key that is absent, or null, means transformers' default.
    """
    given = _flat(published_config(checkpoint))
    ours = {"model_type": model.config.get("model_type"), **OURS, **model.config}
    plain = {key: value for key, value in model.defaults.items() if not callable(value)}
    known = {**OURS, **plain, **{key: value for key, value in given.items() if value is not None}}
    made = [key for key in ours if key not in known and key in model.defaults]
    for key in (*(key for key in ours if key not in made), *made):  # others are made of equal ones
        if key in CHANGES_NOTHING:
            continue
        if key in made:
            known[key] = _made(key, model.defaults[key], known, checkpoint)
        if key not in known and key not in given:
            allowed = f"has no {key} in its config.json, where this model has {ours[key]}: add it"
            raise BadInput(KEY, checkpoint, allowed)
        if (theirs := known.get(key)) != ours[key]:
            raise BadInput(KEY, checkpoint, _differs(key, theirs, ours[key], given, model.keys))


def _made(key: str, default: Any, known: Mapping[str, Any], checkpoint: str) -> Any:
    """A default that depends on other keys; raises BadInput if they are none to make it of."""
    try:
        return default(known)
    except (TypeError, ValueError, ArithmeticError) as error:
        allowed = f"has no {key} in its config.json, and keys of which none can be made ({error})"
        raise BadInput(KEY, checkpoint, allowed) from None


def _differs(
    key: str, theirs: Any, ours: Any, given: Mapping[str, Any], keys: Mapping[str, str]
) -> str:
    """The difference, and the key of the recipe that would end it."""
    says = f"has {key}={short(theirs)}, this model has {short(ours)}"
    if key not in given:
        says = f"has no {key} in its config.json, which means {short(theirs)}; "
        says += f"this model has {short(ours)}"
    return f"{says}: set model.{keys[key]}={short(theirs)}" if key in keys else says


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the values of its rotary positions among its keys.

    They have stood among the keys, with a kind in `rope_scaling`, and stand in `rope_parameters`
    now; transformers reads one of the two dicts, and what stands in it first.
    """
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        rope = {"rope_type": rope}  # no kind, or one for each kind of layer
    if (kind := rope.get("rope_type", rope.get("type"))) is not None:
        rope = {**rope, "rope_type": kind}
    return {**config, **rope}
