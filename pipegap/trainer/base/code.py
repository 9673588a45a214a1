"""A folder of the user's own Python (`code=DIR`), whose modules and YAMLs a config may name."""

import hashlib
import inspect
import sys
import traceback
import typing
from functools import cache
from pathlib import Path

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import PACKAGE

MACHINERY = ("<", f"{PACKAGE}/", inspect.__file__, typing.__file__)
"""How the names of files start whose lines say nothing about an error in the user's code."""


def use_code(folder: str | None) -> None:
    """Lets this process import the modules of `folder`; raises BadInput if there is none.

    Installed modules come first, so that a file of the user's hides none of them.
    """
    if folder is None:
        return
    require_code(folder)
    if (path := str(Path(folder).resolve())) not in sys.path:
        sys.path.append(path)


def require_code(folder: str) -> None:
    """Raises BadInput unless `folder` is one that has a Python file."""
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
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def is_in(folder: str | None, file: str | None) -> bool:
    """Whether a module's source `file` lies below the folder of the user's code."""
    return (
        folder is not None
        and file is not None
        and Path(file).resolve().is_relative_to(Path(folder).resolve())
    )


def refuse_hidden(folder: str | None, address: str) -> None:
    """Raises BadInput if the module of `address` is in `folder` and was imported from elsewhere."""
    module = address.partition(".")[0]
    if folder is None or not any(Path(folder, name).exists() for name in (module, f"{module}.py")):
        return
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is not None and not is_in(folder, file):
        allowed = f"has {module}.py, but Python finds {file} first: rename yours"
        raise BadInput("code", folder, allowed)


def in_short(error: BaseException) -> str:
    """Returns what went wrong in the user's code, in which line of which file."""
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
    user_frames = [frame for frame in frames if "site-packages" not in frame.filename]
    last = (user_frames or frames)[-1]  # not the library's line: wandb puts its own around sys.exit
    return f"{name}: {error!s}, {last.filename}:{last.lineno}"


def _files(folder: Path) -> list[Path]:
    """Returns the Python files below `folder`, without those of hidden folders such as .venv."""
    paths = (path.relative_to(folder) for path in folder.rglob("*.py") if path.is_file())
    return [folder / p for p in sorted(paths) if not any(n.startswith(".") for n in p.parts)]
