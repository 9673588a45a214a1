"""Graphs that are run as they were traced, by torch: its compiler takes a minute.

Products and attention are torch's too, so that they equal a plain stage's to the bit.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainer.compiled import passes, step


def _forget() -> None:
    passes._graph.cache_clear()
    step.update_graph.cache_clear()


@pytest.fixture(scope="package")
def graphs() -> Iterator[list[Any]]:
    """Every graph that was to be compiled; those of one shape are made once."""
    seen: list[Any] = []

    def as_it_is(graph: Any, *_: Any) -> Callable[..., Any]:
        seen.append(graph)
        run: Callable[..., Any] = graph.forward
        return run

    _forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.compiled.graphs.compiled", as_it_is)
        patch.setattr("trainer.compiled.graphs.products_of", lambda num_threads: {})
        patch.setattr("trainer.compiled.passes.SHORT", 0)
        yield seen
    _forget()
