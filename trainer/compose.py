"""Composes a trial's config with Hydra: the one place of the trainer that knows Hydra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer.config import validate
from trainer.errors import BadInput

CONF = Path(__file__).parent.parent / "conf"


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved, validated config of `overrides` over conf/config.yaml.

    Raises BadInput for anything that Hydra or the schema does not accept.
    """
    return validate(compose_node("config", overrides))


def compose_node(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """A config below conf/, resolved to plain data but not validated."""
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = hydra_compose(name, list(overrides))
        node = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        key, _, value = _culprit(overrides, str(error)).partition("=")
        raise BadInput(key, value, " ".join(str(error).split())) from None
    assert isinstance(node, dict)
    return {str(key): value for key, value in node.items()}


def _culprit(overrides: Sequence[str], message: str) -> str:
    """The override that a message of Hydra's speaks of, as far as it tells."""
    named = (o for o in overrides if o.split("=")[0].lstrip("+~") in message or o in message)
    return next(named, " ".join(overrides))
