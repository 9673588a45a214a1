"""Builds what a resolved config names: `_target_` is an import path, the rest are its keywords."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

Node = Mapping[str, Any]


def locate(path: str) -> Callable[..., Any]:
    """The class or function at a dotted import path.

    Raises ImportError or AttributeError where there is none.
    """
    module, _, name = path.rpartition(".")
    target: Callable[..., Any] = getattr(import_module(module), name)
    return target


def build(node: Node, *parts: object) -> Any:
    """Calls the node's `_target_` with `parts` by position and the node's keys by keyword."""
    keywords = {key: value for key, value in node.items() if key != "_target_"}
    return locate(node["_target_"])(*parts, **keywords)


def label(node: Node) -> str:
    """The name people use for a choice: the last lower-case part of its import path."""
    parts = node["_target_"].split(".")
    return next(part for part in reversed(parts) if part == part.lower())
