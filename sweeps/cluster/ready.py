"""Whether this machine, the data and the store fit the trials that a driver is about to run."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sweeps.request.expand import Trial
from trainer.base.errors import BadInput
from trainer.base.resources import require_device
from trainer.parts import open_data
from trainer.store.store import SweepStore


def require_ready(store: SweepStore, todo: Sequence[Trial]) -> None:
    """Raise BadInput if the store, this machine or the data does not fit the trials to do.

    It names everything that is missing: people should not fetch a GPU to learn that data is not
    there.
    """
    store.require_usable()
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
