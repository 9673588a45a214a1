"""Builds the classes and functions that a resolved config names, from the project's code or the
user's own folder (`code=DIR`).
"""

import hashlib
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from inspect import getattr_static
from pathlib import Path
from typing import Any

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.former import MOVED
from pipegap.trainer.base.places import PACKAGE

# The user's own Python folder (`code=DIR`), whose modules and YAMLs a config may name.

MACHINERY = ("<", f"{PACKAGE}/", inspect.__file__, typing.__file__)
"""First characters of the names of files whose lines do not explain an error in the user's code."""


def use_code(folder: str | None) -> None:
    """Lets this process import the modules of `folder`; raises BadInput if there is none.

    Installed modules come first, so that a file of the user's hides none of them.
    """
    if folder is None:
        return
    require_code(folder)
    # Absolute: what is imported must not depend on the working folder.
    if (path := str(Path(folder).resolve())) not in sys.path:
        sys.path.append(path)


def require_code(folder: str) -> None:
    """Raises BadInput unless `folder` is a folder with a Python file."""
    if not Path(folder).is_dir():
        raise BadInput("code", folder, "must be a folder that is there")
    if not _files(Path(folder)):
        raise BadInput("code", folder, "must be a folder of Python files")


@cache
def code_digest(folder: str) -> str:
    """Returns SHA-256 (16 digits) of names and contents of all Python files below `folder`.

    A process computes the digest once, about when it imports the files.
    """
    digest = hashlib.sha256()
    for path in _files(Path(folder)):
        # A name ends with \0 and a content has a fixed length: no two folders read the same.
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def is_in(folder: str | None, file: str | None) -> bool:
    """Whether a module's source `file` lies below the folder of the user's code."""
    if folder is None or file is None:
        return False
    return Path(file).resolve().is_relative_to(Path(folder).resolve())


def refuse_hidden(folder: str | None, address: str) -> None:
    """Raises BadInput if `folder` has the module of `address`, but Python imported another one."""
    module = address.partition(".")[0]
    if folder is None or not any(Path(folder, name).exists() for name in (module, f"{module}.py")):
        return
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is not None and not is_in(folder, file):
        allowed = f"has {module}.py, but Python finds {file} first: rename yours"
        raise BadInput("code", folder, allowed)


def in_short(error: BaseException) -> str:
    """Returns an error of the user's code in one line, with the file and the line of the code."""
    name = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{name}: {error.msg}, {error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(MACHINERY) and "importlib" not in frame.filename
    ]
    if not frames:
        return str(error)
    # The last line of the user's own, not of a library: wandb wraps sys.exit in a function.
    user_frames = [frame for frame in frames if "site-packages" not in frame.filename]
    last = (user_frames or frames)[-1]
    return f"{name}: {error!s}, {last.filename}:{last.lineno}"


def _files(folder: Path) -> list[Path]:
    """Returns the Python files below `folder`, without those of hidden folders such as .venv."""
    paths = (path.relative_to(folder) for path in folder.rglob("*.py") if path.is_file())
    return [folder / p for p in sorted(paths) if not any(n.startswith(".") for n in p.parts)]


Node = Mapping[str, Any]
"""A part of a resolved config: `_target_` is an import path, the other keys are its keywords."""

PREFIX, OWN = "pipegap.", ("trainer.", "sweeps.")
"""Our package; the start of the published addresses of our choices, which omit the package."""


@cache
def published(path: str) -> str:
    """The address under which the class or function at `path` was first published.

    It is `path` if it never moved. Addresses of our own omit `pipegap.`, as all did until version
    0.2.
    """
    path = path.removeprefix(PREFIX) if is_own(path) else path
    home = MOVED.get(path, path)  # `path` may itself be the first address
    return next((first for first, home_now in MOVED.items() if home_now == home), path)


def is_own(path: str) -> bool:
    """Whether a dotted import path, published or not, is one of our package's."""
    return path.removeprefix(PREFIX).startswith(OWN)


def locate(path: str) -> Callable[..., Any]:
    """The class or function at a dotted import path.

    Raises ImportError or AttributeError where there is none.
    """
    first = published(path)
    home = PREFIX + MOVED.get(first, first) if is_own(path) else path
    module, _, name = home.rpartition(".")
    return getattr(import_module(module), name)


def build(node: Node, *parts: object) -> Any:
    """Calls the node's `_target_` with `parts` by position and the node's keys by keyword."""
    keywords = {key: value for key, value in node.items() if key != "_target_"}
    return locate(node["_target_"])(*parts, **keywords)


def made(group: str, node: Node, kind: type, *parts: object) -> Any:
    """Returns what `build` does for a choice of `group`, which must have the members of a `kind`.

    Raises BadInput if it lacks one, or if code from outside the package fails.
    """
    address = node["_target_"]
    if is_own(address):  # an error in it is a fault of ours, and keeps its traceback
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
    # `getattr_static` calls no property: `hash` of data would read all of it.
    missing = object()  # None could be an attribute's value
    if lacking := [name for name in members if getattr_static(built, name, missing) is missing]:
        raise BadInput(f"{group}._target_", address, f"{allowed} lacks {', '.join(lacking)}")
    return built


def label(node: Node) -> str:
    """The name of a choice by its class: the last lower-case part of its published address, such as
    a module or a function, or the last part if none is."""
    parts = published(node["_target_"]).split(".")
    return next((part for part in reversed(parts) if part == part.lower()), parts[-1])
