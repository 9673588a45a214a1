"""What is made of the same tables is made once, as long as they live."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import pandas as pd

T = TypeVar("T")


def remembered(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function that makes something of tables at its first call with these objects, and
    returns the same thing later.

    Its arguments are tables alone, which nobody changes once they are made: a column is added to a
    copy. The caller changes the returned thing as little.
    """
    known: dict[tuple[int, ...], T] = {}

    @wraps(function)
    def once(*tables: pd.DataFrame) -> T:
        key = tuple(map(id, tables))
        if key not in known:
            known[key] = function(*tables)
            for table in tables:
                weakref.finalize(table, known.pop, key, None)
        return known[key]

    return once
