"""What the trials of a driver run with, on a cluster that it has until it is asked to stop.

Ray and Tune are imported when a session begins: a sweep with nothing to do needs neither.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipegap.sweeps.cluster.notices import Ends
from pipegap.sweeps.tracking.choice import Tracking
from pipegap.trainer.base.cli import stopping
from pipegap.trainer.store.store import SweepStore

SAYS = "running trials save a checkpoint and stop"
"""What a driver says when a signal asks it to stop."""


@dataclass(frozen=True)
class Session:
    """What trials of a store run with. `gpus_per_trial` and `tracking` are those of a request."""

    title: str
    """What people see of it."""
    store: SweepStore
    gpus_per_trial: float
    tracking: Tracking
    folder: Path
    """For temporary files."""
    asked_to_stop: Callable[[], bool]
    ends: Ends
    """Is called at the end of every trial that ran here."""


@contextmanager
def session(
    title: str, store: SweepStore, gpus_per_trial: float, tracking: Tracking, ends: Ends
) -> Iterator[Session]:
    """Yield a session, which a signal asks to stop, and so may its `ends`.

    Raises Unavailable if Ray does not start, and BadInput if a node of the cluster does not see the
    store.
    """
    from pipegap.sweeps.cluster.connection import cluster, require_seen_by_nodes

    # Ray installs its signal handlers when it starts; `stopping` replaces them after that.
    with cluster() as (folder, asked_before), stopping(SAYS) as asked_since:
        require_seen_by_nodes(store)

        def asked_to_stop() -> bool:
            return asked_before() or asked_since() or ends.has_failed()

        yield Session(title, store, gpus_per_trial, tracking, folder, asked_to_stop, ends)
