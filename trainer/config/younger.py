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
        "shard_optimizer": False,
        "model.loss_chunk": None,
        "pipeline.slack": False,
    }
)
"""Key → the value at which a trial does what trials did before there was the key."""


def without_younger(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without those that have this value: what it hashes to does not depend on them.

    Its groups may be nested, or its keys have dots.
    """
    found = dict(config)
    for key, usual in YOUNGER.items():
        group, _, name = key.rpartition(".")
        of_group = found.get(group)
        if key in found and found[key] == usual:
            del found[key]
        elif isinstance(of_group, Mapping) and name in of_group and of_group[name] == usual:
            found[group] = {other: value for other, value in of_group.items() if other != name}
    return found
