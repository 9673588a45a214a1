"""The results that a store holds of a sweep's trials, the pace of finished ones by their shape, and
whether the others can run."""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from uuid import uuid4

from sweeps.request.expand import Trial
from sweeps.store.store import SweepStore
from trainer.base.build import label
from trainer.base.errors import BadInput
from trainer.base.resources import require_device
from trainer.base.status import Status
from trainer.config.names import YOUNGER, without_younger
from trainer.folder.lease import STALE_AFTER
from trainer.folder.record import Row, TrialFolder, read_result
from trainer.folder.wellformed import CONFIG, read
from trainer.parts import open_data

PROBE = ".probe-"
SHAPE = (
    *("model", "seq_len", "batch_size", "num_replicas", "dtype", "runner", "num_threads"),
    *("eval_tokens", "eval_dtype"),
)
"""Keys that trials of one shape share, with the device, `compile`, stages and microbatches."""
MAX_READ = 2_000
"""How many trials of the store are read beside those of the plan, the newest first."""

Config = Mapping[str, Any]


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


class Pace(NamedTuple):
    """What a trial takes, by the clock."""

    tokens_per_second: float
    """Of the training alone."""
    seconds_per_evaluation: float
    """Of everything else, start and checkpoints included, divided by its evaluations."""


class Throughput:
    """The paces of finished trials, by shape.

    A config is priced by trials of its shape that have its optimizer and pipeline too; if there is
    none, by all trials of its shape.
    """

    def __init__(self) -> None:
        self._paces: dict[str, dict[str, list[Pace]]] = {}

    def add(self, config: Config, result: Row) -> None:
        """Adds the pace of a finished trial, unless it trained on no token."""
        if result.get("tokens") and result["tokens_per_second"]:
            of_shape = self._paces.setdefault(shape(config), {})
            of_shape.setdefault(_kind(config), []).append(_pace(config, result))

    def of(self, config: Config) -> Pace | None:
        """The median pace of the config's shape; None if no trial of it has finished."""
        of_shape = self._paces.get(shape(config), {})
        paces = of_shape.get(_kind(config)) or [*chain.from_iterable(of_shape.values())]
        return Pace(*map(median, zip(*paces, strict=True))) if paces else None

    def add_from(self, store: Path, wanted: Iterable[Config]) -> None:
        """Adds the trials of the store whose shape is that of a `wanted` config without any."""
        missing = {shape(config) for config in wanted if self.of(config) is None}
        for folder in _newest(store / "trials") if missing else []:
            with suppress(OSError, ValueError, LookupError):  # not a trial, or an older one
                config = read(folder / "config.json", CONFIG)
                if shape(config) in missing and (result := read_result(folder)) is not None:
                    self.add(config, result)


def shape(config: Config) -> str:
    """The keys that decide a trial's speed, as JSON."""
    pipeline = config["pipeline"]
    config = {**YOUNGER, **without_younger(config)}
    same = [config[key] for key in SHAPE]
    same += [config["device"].split(":")[0], config["compile"]]
    same += [pipeline["num_stages"], pipeline["num_microbatches"], pipeline.get("num_chunks", 1)]
    return json.dumps(same, sort_keys=True)


def _pace(config: Config, result: Row) -> Pace:
    speed = float(result["tokens_per_second"])
    rest = max(0.0, float(result["wall_seconds"]) - result["tokens"] / speed)
    return Pace(speed, rest / ceil(result["num_updates"] / config["eval_every"]))


def _kind(config: Config) -> str:
    return f"{label(config['optimizer'])} {label(config['pipeline'])}"


def _newest(trials: Path) -> list[Path]:
    try:
        entries = [*os.scandir(trials)]
    except OSError:
        return []
    entries.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    return [Path(entry.path) for entry in entries[:MAX_READ]]
