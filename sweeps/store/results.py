"""The results that a store holds of a sweep's trials, and whether the others can run."""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from sweeps.request.expand import Trial
from sweeps.store.store import SweepStore
from trainer.base.errors import BadInput
from trainer.base.resources import require_device
from trainer.base.status import Status
from trainer.folder.lease import STALE_AFTER
from trainer.folder.record import Row, TrialFolder, read_result
from trainer.parts import open_data

PROBE = ".probe-"


def finished(trial: Trial) -> Row | None:
    """Return the result of a trial; None if it has to run: it has not finished, or failed.

    Warns if it cannot run, because its folder is damaged or another trial's.
    """
    try:
        return TrialFolder(trial.folder, trial.plan.trial_id).result()
    except BadInput as error:
        warnings.warn(f"trial {trial.plan.trial_id} cannot run: {error}", stacklevel=1)
        return None


def final_loss(trial: Trial) -> float | None:
    """Return the final validation loss: infinite if the trial diverged, None if it has to run."""
    result = finished(trial)
    if result is None:
        return None
    loss: float | None = result["final_val_loss"]
    return math.inf if loss is None else loss


def failed(trial: Trial) -> bool:
    """Return whether the trial ran and failed."""
    result = read_result(trial.folder)
    return result is not None and result["status"] == Status.FAILED


def require_writable(results: Path) -> None:
    """Raise BadInput if `results` cannot be written, or its file system cannot hold a lease."""
    trials = results / "trials"
    try:
        trials.mkdir(parents=True, exist_ok=True)
        with probe(trials) as made:
            exclusive = not creates(made)
            clean_old(trials, f"{PROBE}*", newest=made)
    except OSError as error:
        allowed = f"must be a folder that can be written ({error.strerror})"
        raise BadInput("results", results, allowed) from None
    if not exclusive:
        allowed = "must be on a file system with exclusive creation: a file was created twice"
        raise BadInput("results", results, allowed)


@contextmanager
def probe(folder: Path) -> Iterator[Path]:
    """Yield a new file in `folder`, which is deleted afterwards."""
    path = folder / f"{PROBE}{uuid4().hex}"
    path.touch(exist_ok=False)
    try:
        yield path
    finally:
        path.unlink()


def creates(path: Path) -> bool:
    """Return whether exclusive creation of an existing file succeeds: that would break leases."""
    try:
        with path.open("x"):
            return True
    except FileExistsError:
        return False


def clean_old(folder: Path, pattern: str, newest: Path) -> None:
    """Delete the files of `folder` that match `pattern`, unless a living process may write them.

    Such a file lives for less than a second. It is old if it is STALE_AFTER older than the file
    `newest`, which was written just now: the clock is that of the file system.
    """
    with suppress(OSError):  # another driver cleans too
        now = newest.stat().st_mtime
        for left in folder.glob(pattern):
            if left.stat().st_mtime < now - STALE_AFTER:
                left.unlink(missing_ok=True)


def require_ready(store: SweepStore, planned: Sequence[Trial]) -> None:
    """Raise BadInput if the store, this machine or the data does not fit the planned trials.

    It names everything that is missing: people should not fetch a GPU to learn that data is not
    there.
    """
    store.require_usable()
    todo = [trial for trial in planned if finished(trial) is None]
    distinct = {_needs(trial.config): trial.config for trial in todo}
    missing = {str(error): error for config in distinct.values() for error in _missing_of(config)}
    if missing:
        first, *others = missing.values()
        also = "".join(f"; also {error}" for error in others)
        raise BadInput(first.key, first.value, f"{first.allowed}{also}")


def _missing_of(config: Mapping[str, Any]) -> Iterator[BadInput]:
    """Yield what this machine lacks for a trial."""
    checks: list[Callable[[], object]] = [lambda: open_data(config)]
    if not os.environ.get("RAY_ADDRESS"):  # else the driver checks the cluster's resources
        checks.insert(0, lambda: require_device(config["device"]))
    for check in checks:
        try:
            check()
        except BadInput as error:
            yield error


def _needs(config: Mapping[str, Any]) -> str:
    """Return the keys that say which device and data a trial needs, as JSON."""
    return json.dumps([config[key] for key in ("device", "data", "seq_len", "model")])
