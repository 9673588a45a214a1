"""Code of people's own, which tests import from many folders by the same names."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def as_in_a_new_process() -> Iterator[None]:
    """Afterwards Python searches no further folder, and has no module of one that it searched."""
    before = [*sys.path]
    yield
    added = [Path(folder) for folder in sys.path if folder not in before]
    sys.path[:] = before
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if file and any(Path(file).is_relative_to(folder) for folder in added):
            del sys.modules[name]
