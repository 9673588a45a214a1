"""Builds what a resolved config names: `_target_` is an import path, the rest are its keywords."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from inspect import getattr_static
from typing import Any

from pipegap.trainer.base.code import in_short
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.former import MOVED

Node = Mapping[str, Any]

PACKAGE, OWN, MISSING = "pipegap.", ("trainer.", "sweeps."), object()
"""Our package; how the published addresses of our own choices begin, which go without it; no
attribute."""


@cache
def published(path: str) -> str:
    """The address under which what is at `path` was first published; `path` if it never moved.

    Those of our own go without `pipegap.`, as all did until version 0.2.
    """
    path = path.removeprefix(PACKAGE) if is_own(path) else path
    home = MOVED.get(path, path)
    return next((first for first, home_now in MOVED.items() if home_now == home), path)


def is_own(path: str) -> bool:
    """Whether a dotted import path, published or not, is one of our package's."""
    return path.removeprefix(PACKAGE).startswith(OWN)


def locate(path: str) -> Callable[..., Any]:
    """The class or function at a dotted import path.

    Raises ImportError or AttributeError where there is none.
    """
    first = published(path)
    home = PACKAGE + MOVED.get(first, first) if is_own(path) else path
    module, _, name = home.rpartition(".")
    return getattr(import_module(module), name)


def build(node: Node, *parts: object) -> Any:
    """Calls the node's `_target_` with `parts` by position and the node's keys by keyword."""
    keywords = {key: value for key, value in node.items() if key != "_target_"}
    return locate(node["_target_"])(*parts, **keywords)


def made(group: str, node: Node, kind: type, *parts: object) -> Any:
    """Returns what `build` does for a choice of `group`, which must have the members of a `kind`.

    Raises BadInput if it has not, or if code from outside the trainer fails.
    """
    address = node["_target_"]
    if is_own(address):
        return build(node, *parts)
    home = f"{kind.__module__.replace('.', '/')}.py"
    allowed = f"must make a {kind.__name__} ({home}), this one"
    try:
        built = build(node, *parts)
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        why = f"{allowed} fails: {in_short(error)}"
        raise BadInput(f"{group}._target_", address, why) from None
    members = [name for name in vars(kind) if not name.startswith("_") or name == "__call__"]
    # Looked up without being asked for: to hash data takes long.
    if lacking := [name for name in members if getattr_static(built, name, MISSING) is MISSING]:
        raise BadInput(f"{group}._target_", address, f"{allowed} lacks {', '.join(lacking)}")
    return built


def label(node: Node) -> str:
    """What a choice is called by its class: the last lower-case part of its published address, or
    the last of all."""
    parts = published(node["_target_"]).split(".")
    return next((part for part in reversed(parts) if part == part.lower()), parts[-1])
