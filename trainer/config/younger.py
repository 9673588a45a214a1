"""Keys of a config that are younger than trials which people keep."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

YOUNGER: Mapping[str, Any] = MappingProxyType(
    {
        "code": None,
        "diagnostics": None,
        "eval_tokens": None,
        "eval_dtype": "float32",
        "deterministic": True,
        "from_pretrained": None,
        "model.loss_chunk": None,
        "pipeline.slack": False,
    }
)
"""Key → the value at which a trial does what trials did before there was the key."""


def without_younger(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without those that have this value: what it hashes to does not depend on them.

    Its groups may be nested, or its keys have dots.
    """
    return _without(config, "")


def _without(node: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        key: _without(value, f"{key}.") if isinstance(value, Mapping) else value
        for key, value in node.items()
        if (name := prefix + key) not in YOUNGER or value != YOUNGER[name]
    }
