"""Code of people's own, which tests import from many folders by the same names."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AT_COLLECTION = frozenset(sys.path)
"""The folders that Python searches before any test has run."""


@contextmanager
def as_in_a_new_process() -> Iterator[None]:
    """Before and afterwards Python searches no folder of a user, whichever test has added it, and
    has no module of one."""
    _forget_users_folders()
    yield
    _forget_users_folders()


def _forget_users_folders() -> None:
    folders = [Path(folder) for folder in sys.path if folder not in AT_COLLECTION]
    sys.path[:] = [folder for folder in sys.path if folder in AT_COLLECTION]
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if file and any(Path(file).is_relative_to(folder) for folder in folders):
            del sys.modules[name]
