"""Composes a trial's config with Hydra: the one place of the trainer that knows Hydra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer.config import validate
from trainer.errors import BadInput

CONF = Path(__file__).parent.parent / "conf"
Node = dict[str, Any]


def compose(overrides: Sequence[str]) -> Node:
    """The resolved, validated config of `overrides` over conf/config.yaml.

    Raises BadInput for anything that Hydra or the schema does not accept.
    """
    return validate(compose_node("config", overrides))


def compose_node(name: str, overrides: Sequence[str]) -> Node:
    """A config below conf/, resolved to plain data but not validated."""
    try:
        return _plain(_compose(name, overrides), resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        key, _, value = _culprit(overrides, str(error)).partition("=")
        raise BadInput(key, value, " ".join(str(error).split())) from None


class Composer:
    """`compose` for many configs: Hydra composes each set of choices once, keys are set on that.

    Only plain `key=value` is done here. Whatever else a config asks for, and whatever is wrong with
    one, is left to `compose`.
    """

    def __init__(self) -> None:
        self._parser = OverridesParser.create()
        self._parsed: dict[str, Override] = {}
        self._composed: dict[tuple[str, ...], Node] = {}

    def __call__(self, overrides: Sequence[str]) -> Node:
        """The same as `compose(overrides)`, errors included."""
        try:
            node = self._node(overrides)
        except (_NotPlain, HydraException, OmegaConfBaseException, ValueError):
            return compose(overrides)
        return validate(node)

    def _node(self, overrides: Sequence[str]) -> Node:
        parsed = {override: self._parse(override) for override in overrides}
        choices = [word for word in overrides if (CONF / parsed[word].key_or_group).is_dir()]
        node = self._chosen(tuple(choices))
        for word in overrides:
            if word not in choices:
                _set(node, parsed[word].key_or_group, parsed[word].value())
        return _resolved(node, node)

    def _parse(self, override: str) -> Override:
        if override not in self._parsed:
            self._parsed[override] = self._parser.parse_override(override)
        of = self._parsed[override]
        is_change = of.type is OverrideType.CHANGE and of.package is None
        if not is_change or of.is_sweep_override() or not isinstance(of.value(), SCALAR):
            raise _NotPlain
        return of

    def _chosen(self, choices: tuple[str, ...]) -> Node:
        """A copy of what the choices give, interpolations as they are written."""
        if choices not in self._composed:
            self._composed[choices] = _plain(_compose("config", choices), resolve=False)
        return deepcopy(self._composed[choices])


SCALAR = (str, int, float, bool, type(None))


class _NotPlain(Exception):
    """More than a scalar set on a key that holds one."""


def _set(node: Node, key: str, value: Any) -> None:
    """Sets a dotted key that is there."""
    *path, last = key.split(".")
    for part in path:
        node = node.get(part, {})
        if not isinstance(node, dict):
            raise _NotPlain
    if not isinstance(node.get(last, {}), SCALAR) or "$" in str(value) or value == "???":
        raise _NotPlain
    node[last] = value


def _resolved(node: Node, root: Node) -> Node:
    """With the values that interpolations, e.g. ${num_updates}, have in `root`."""
    return {key: _value(value, root) for key, value in node.items()}


def _value(value: Any, root: Node) -> Any:
    if isinstance(value, dict):
        return _resolved(value, root)
    if not isinstance(value, str) or "$" not in value:
        return value
    reference = re.fullmatch(r"\$\{(\w+)\}", value)
    if reference is None or reference[1] not in root:
        raise _NotPlain
    return _value(root[reference[1]], root)


def _compose(name: str, overrides: Sequence[str]) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra_compose(name, list(overrides))


def _plain(config: DictConfig, *, resolve: bool) -> Node:
    node = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=resolve)
    assert isinstance(node, dict)
    return {str(key): value for key, value in node.items()}


def _culprit(overrides: Sequence[str], message: str) -> str:
    """The override that a message of Hydra's speaks of, as far as it tells."""
    keys = {override: override.split("=")[0].lstrip("+~") for override in overrides}
    quoted = (o for o in overrides if f"'{keys[o]}'" in message or f"'{keys[o]}/" in message)
    named = (o for o in overrides if keys[o] in message or o in message)
    unknown = (o for o in overrides if _chooses_nothing(o))
    return next(chain(quoted, named, unknown), " ".join(overrides))


def _chooses_nothing(override: str) -> bool:
    group, _, choice = override.partition("=")
    return (CONF / group).is_dir() and not (CONF / group / f"{choice}.yaml").exists()
