"""Documents in batches, each with the state from which the documents after it can be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

DOCUMENTS_AT_ONCE = 1000

State = dict[str, Any]
"""Where a stream of documents is; it can be written as JSON."""


@runtime_checkable
class Stateful(Protocol):
    """Documents that can be read from the middle without reading those before."""

    def __iter__(self) -> Iterator[str]: ...

    def state_dict(self) -> State:
        """Where the iteration is."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Makes the next iteration start there."""
        ...


class Counted:
    """Makes any documents stateful: those before are read again and skipped."""

    def __init__(self, documents: Iterable[str]) -> None:
        self._documents, self._done = documents, 0

    def __iter__(self) -> Iterator[str]:
        for text in islice(self._documents, self._done, None):
            self._done += 1
            yield text

    def state_dict(self) -> State:
        """How many documents were read."""
        return {"documents": self._done}

    def load_state_dict(self, state: State) -> None:
        """Skips as many."""
        self._done = state["documents"]


class Batch(NamedTuple):
    """Some documents; `after` is the state behind them."""

    texts: list[str]
    after: State


def batches(documents: Iterable[str], before: State | None) -> Iterator[Batch]:
    """The documents behind the state `before`; all of them if it is None."""
    stream = documents if isinstance(documents, Stateful) else Counted(documents)
    if before is not None:
        stream.load_state_dict(before)
    iterator = iter(stream)
    while texts := list(islice(iterator, DOCUMENTS_AT_ONCE)):
        yield Batch(texts, stream.state_dict())
