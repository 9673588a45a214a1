"""Supervises the ranks of a gang, wherever they run, and finds the one that caused a failure."""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

from pipegap.trainer.base.errors import BadInput, GangFailed, LeaseLost, Stopped
from pipegap.trainer.ranks.groups import PeerLost

START_UP = 300.0
"""Seconds that a rank may take to import torch and to build its part, on a busy machine."""
POLL_EVERY = 0.5
"""Seconds between two looks at the ranks while none of them sends a message."""
CAUSE_TIMEOUT = 2.0
"""Seconds to wait, after the first sign of a failure, for the rank that caused it."""

AskedToStop = Callable[[], bool]
REFUSALS: tuple[type[Exception], ...] = (BadInput, LeaseLost)
"""Why a rank does not go on, which is nobody's failure: it ends the gang at once."""
NO_FAILURE: tuple[type[Exception], ...] = (*REFUSALS, Stopped)
"""Errors that a rank passes on as they are."""
T = TypeVar("T")


class Parent(NamedTuple):
    """What the parent of a gang does while it runs."""

    on_message: Callable[[Any], None]
    """Gets each message that a rank sends."""
    timeout: float
    """Seconds without any progress after which the gang has failed."""
    asked_to_stop: AskedToStop = lambda: False
    """Whether the ranks are to stop at their next drain."""


Launch = Callable[[Callable[..., None], Sequence[object], int, Parent], None]
"""(program, arguments, number of ranks, parent): starts the ranks of a gang, as `spawn.run_gang`.

It runs `program(store, heartbeat, send, *arguments)` as every rank, until all have ended. A rank
passes messages to `parent` by `send`, and learns by its heartbeat that it is asked to stop. Raises
GangFailed with the first cause if a rank fails, or if none makes progress for the parent's timeout;
BadInput, LeaseLost or Stopped if a rank raised it. No rank outlives this call, nor this process if
it is killed.
"""


class Cause(NamedTuple):
    """Why a rank failed. The smaller one is the likelier first cause: of two of the same likelihood
    the earlier one, and one that lost a peer (1) is the victim of another (0)."""

    likelihood: int
    time: float
    message: str


class Liveness(NamedTuple):
    """Seconds since a rank made progress, and since its process gave any sign of life; whether it
    waits for another rank."""

    idle: float
    silent: float
    waits: bool


class Ranks(Protocol):
    """The ranks of a gang, as their parent sees them."""

    def receive(self, timeout: float) -> Iterable[tuple[int, object]]:
        """Pairs of a rank and its message, as soon as there are any; none after `timeout` seconds.

        The last message of a rank is a Cause, an error, or None: see `exit_message`.
        """

    def liveness(self) -> Sequence[Liveness]:
        """One entry per rank."""

    def ask_to_stop(self) -> None:
        """Asks the ranks to stop at their next drain; may be called again."""


def exit_message(index: int, run: Callable[[], None]) -> Cause | Exception | None:
    """Calls `run`, which is all that rank `index` does; returns how it ended, None if well."""
    try:
        run()
    except NO_FAILURE as error:
        return error
    except PeerLost as error:
        return Cause(1, monotonic(), f"rank {index}: {error}")
    except BaseException:
        return Cause(0, monotonic(), f"rank {index} raised:\n{traceback.format_exc()}")
    return None


def is_exit_message(message: object) -> bool:
    """Whether it is the last message of a rank."""
    return message is None or isinstance(message, (Cause, *NO_FAILURE))


def supervise(ranks: Ranks, num_ranks: int, parent: Parent) -> None:
    """Passes messages on until every rank has ended; raises as `Launch` does."""
    exits: dict[int, object] = {}
    deadline = float("inf")
    while len(exits) < num_ranks and monotonic() < deadline:
        if parent.asked_to_stop():
            ranks.ask_to_stop()
        for index, message in ranks.receive(POLL_EVERY):
            if is_exit_message(message):
                exits[index] = message
            else:
                parent.on_message(message)
        if causes := _of(Cause, exits):
            deadline = min(deadline, monotonic() + CAUSE_TIMEOUT)
        else:
            _require_progress(ranks.liveness(), parent.timeout)
        if _of(REFUSALS, exits) or (causes and min(causes).likelihood == 0):
            break
    for refused in _of(REFUSALS, exits):
        raise refused
    if causes := _of(Cause, exits):
        raise GangFailed(min(causes).message)
    for stopped in _of(Stopped, exits):  # not before all ended: one writes the checkpoint
        raise stopped


def _of(kind: type[T] | tuple[type[T], ...], exits: Mapping[int, object]) -> list[T]:
    return [message for message in exits.values() if isinstance(message, kind)]


def _require_progress(liveness: Sequence[Liveness], timeout: float) -> None:
    """Raises GangFailed if no rank made progress for `timeout` seconds.

    The message blames the ranks that do not wait for another one, and ranks that wait but whose
    process is silent.
    """
    if min(rank.idle for rank in liveness) <= timeout:
        return
    stuck = [
        f"rank {index}"
        for index, rank in enumerate(liveness)
        if not rank.waits or rank.silent > timeout / 2
    ]
    if not stuck:
        raise GangFailed(f"every rank has waited for another for timeout={timeout:g} seconds")
    raise GangFailed(
        f"{' and '.join(stuck)} made no progress for timeout={timeout:g} seconds; "
        "the others wait for it"
    )
