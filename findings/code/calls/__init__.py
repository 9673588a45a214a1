"""What a page may call: every public function of every module here, by its name."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules

CALLS: Mapping[str, Callable[..., str]] = {
    name: function
    for module in (import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__))
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith("_")
}
"""Name → function, which returns what the page shows."""
