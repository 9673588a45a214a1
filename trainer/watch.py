"""Watches the ranks of a gang, wherever they run, and finds out which one is to blame."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

from trainer.errors import BadInput, GangFailed, Stopped
from trainer.gang import PeerLost

START_UP = 300.0
"""Seconds that a rank may take to import torch and to build its part, on a busy machine."""

PATIENCE = 2.0
"""Seconds to wait, after the first sign of a failure, for the one that caused it."""

AskedToStop = Callable[[], bool]
T = TypeVar("T")


class Launch(Protocol):
    """Starts the ranks of a gang: `spawn.run_gang` is one."""

    def __call__(
        self,
        program: Callable[..., None],
        arguments: Sequence[object],
        num_ranks: int,
        hear: Callable[[Any], None],
        timeout: float,
        asked_to_stop: AskedToStop,
    ) -> None:
        """Runs `program(store, pulse, tell, *arguments)` as every rank, to the end of all.

        `hear` is handed what a rank tells; the ranks are told of `asked_to_stop`. Raises GangFailed
        with the first cause if one fails, or if none gets on for `timeout` seconds; BadInput or
        Stopped if a rank raised it. No rank is left behind, nor when this process is killed.
        """


class Cause(NamedTuple):
    """Why a rank ended, the likelier first cause first: those that lost a peer are its victims."""

    likelihood: int
    time: float
    message: str


class Vital(NamedTuple):
    """Seconds since a rank got on and since it was awake at all; whether it waits for another."""

    idle: float
    asleep: float
    waits: bool


class Ranks(Protocol):
    """The ranks of a gang, as their parent sees them."""

    def told(self, patience: float) -> Iterable[tuple[int, object]]:
        """What was told and by which rank, after `patience` seconds at most.

        The last words of a rank are a Cause, an error, or None.
        """

    def vitals(self) -> Sequence[Vital]:
        """By rank."""

    def ask_to_stop(self) -> None:
        """Tells the ranks to stop when they can; may be repeated."""


def last_words(index: int, run: Callable[[], None]) -> Cause | BadInput | Stopped | None:
    """Runs a rank to its end, and says how it ended."""
    try:
        run()
    except (BadInput, Stopped) as error:
        return error
    except PeerLost as error:
        return Cause(1, monotonic(), f"rank {index}: {error}")
    except BaseException:
        return Cause(0, monotonic(), f"rank {index} raised:\n{traceback.format_exc()}")
    return None


def is_last(told: object) -> bool:
    """Whether a rank says no more."""
    return told is None or isinstance(told, Cause | BadInput | Stopped)


def watch(
    ranks: Ranks,
    num_ranks: int,
    hear: Callable[[Any], None],
    timeout: float,
    asked_to_stop: AskedToStop,
) -> None:
    """Hears the ranks to their end; raises as `Launch` does."""
    last: dict[int, object] = {}
    deadline = float("inf")
    while len(last) < num_ranks and monotonic() < deadline:
        if asked_to_stop():
            ranks.ask_to_stop()
        for index, told in ranks.told(0.5):
            if is_last(told):
                last[index] = told
            else:
                hear(told)
        if causes := _of(Cause, last):
            deadline = min(deadline, monotonic() + PATIENCE)
        else:
            _require_progress(ranks.vitals(), timeout)
        if _of(BadInput, last) or (causes and min(causes).likelihood == 0):
            break
    for refused in _of(BadInput, last):
        raise refused
    if causes := _of(Cause, last):
        raise GangFailed(min(causes).message)
    for stopped in _of(Stopped, last):  # not before all ended: one writes the checkpoint
        raise stopped


def _of(kind: type[T], last: Mapping[int, object]) -> list[T]:
    return [words for words in last.values() if isinstance(words, kind)]


def _require_progress(vitals: Sequence[Vital], timeout: float) -> None:
    """To blame are those that do not wait for another rank, or do not even do that."""
    if min(vital.idle for vital in vitals) <= timeout:
        return
    stuck = [
        f"rank {rank}"
        for rank, vital in enumerate(vitals)
        if not vital.waits or vital.asleep > timeout / 2
    ]
    if not stuck:
        every = f"every rank waits for another since more than timeout={timeout:g} seconds"
        raise GangFailed(every)
    raise GangFailed(
        f"{' and '.join(stuck)} made no progress for timeout={timeout:g} seconds; "
        "the others wait for it"
    )
