"""The interface of a tracker, and how the tracker of a sweep's trials is chosen."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Annotated, Any, Protocol

import yaml
from annotated_types import Interval
from pydantic import TypeAdapter, ValidationError

from pipegap.trainer.base.build import Node, build, locate, use_code
from pipegap.trainer.base.cli import one_of
from pipegap.trainer.base.errors import BadInput, LeaseLost, Status, Stopped
from pipegap.trainer.config.compose import parse_value
from pipegap.trainer.config.identity import names, yamls
from pipegap.trainer.config.schema import check_choice
from pipegap.trainer.folder.wellformed import Row


@dataclass(frozen=True)
class About:
    """What a tracker gets before the first row of a trial."""

    trial_id: str
    sweeps: tuple[str, ...]
    """Labels of the sweeps that ask for the trial, e.g. main-tiny; never empty."""
    arm: str
    setting: str
    """The values of the swept keys, in words, without the optimizer."""
    config: Mapping[str, Any]
    """Resolved, as in config.json."""
    wait: float
    """Seconds that the trial's end waits for the tracker."""

    @property
    def store(self) -> Path:
        """The results folder."""
        return Path(self.config["results"])

    @property
    def choices(self) -> dict[str, str]:
        """Group of the config → name of its choice, e.g. optimizer → adamw."""
        return names(self.config)

    @property
    def name(self) -> str:
        """Optimizer, setting, arm and seed."""
        return run_name(self.config, self.setting, self.arm)


def run_name(config: Mapping[str, Any], setting: str, arm: str) -> str:
    """Return `muon optimizer.lr=0.01 delay_ef seed 2`; `setting` stands in the middle."""
    parts = (names(config)["optimizer"], setting, arm, f"seed {config['seed']}")
    return " ".join(filter(None, parts))


def hyperparameters(about: About) -> dict[str, str | float | bool]:
    """Return the arm, the choices and every number and flag of the config, by dotted keys."""
    plain = {"arm": about.arm, **about.choices}
    return plain | {key: value for key, value in _leaves(about.config) if key not in plain}


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | bool]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float):
            yield f"{prefix}{key}", value


class Tracker(Protocol):
    """Follows one attempt at a trial.

    The constructor `_target_(about, **keys)` starts it. All calls come from one thread, which is
    not the trial's. An exception ends the tracking, never the trial. A tracker must not change what
    the process shares: random states, signals, output.
    """

    def log(self, row: Row) -> None:
        """Takes a row of metrics.jsonl.

        Rows come in order of `update`. An attempt that resumes from a checkpoint starts there, and
        repeats the rows that the attempt before it logged after the checkpoint.
        """

    def finish(self, outcome: Row) -> None:
        """Takes the trial's result, or of an attempt without one only its `status`: `failed`,
        `stopped`, or `elsewhere` if another process took the trial over."""


class NoTracker:
    """Ignores every row."""

    def __init__(self, about: About) -> None:
        pass

    def log(self, row: Row) -> None:
        """See `Tracker`."""

    def finish(self, outcome: Row) -> None:
        """See `Tracker`."""


def numbers(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield path and number of a row, e.g. diagnostics/all/update_cosine for a nested number."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{key}/")
        elif isinstance(value, Real):
            yield f"{prefix}{key}", float(value)


def summary(outcome: Row) -> Row:
    """Return the values of a trial's outcome that a tracker shows beside its curves."""
    keys = ("final_val_loss", "diverged_at", "delays", "wall_seconds")
    outcome_shown = {key: outcome[key] for key in keys if key in outcome}
    # `str`: wandb would write the name of an enumeration's member.
    return {"status": str(outcome["status"]), **outcome_shown}


# The tracker of a sweep's trials: tracking/<name>.yaml of conf/ or of the user's own code,
# changed by the command line.
#
# It runs in a thread of its own, so that no trial waits for it or fails because of it.

GROUP = "tracking"
Seconds = Annotated[float, Interval(ge=0, le=1e8)]
WAIT = 10.0
"""The `wait` of a tracker whose YAML does not set it, in seconds."""
CAPACITY = 10_000
"""Rows that wait for a tracker at most. Further ones are dropped and counted."""
PASSED_ON_EVERY = 1.0
"""Seconds between two times that rows are passed on: a thread that wakes for each of them takes a
fiftieth of a small update."""
WITHOUT_RESULT = {Stopped: Status.STOPPED, LeaseLost: Status.ELSEWHERE}
"""Exception that ended an attempt → its status. After any other exception it failed."""


class Background:
    """A context around one attempt at a trial.

    The tracker starts at the first row: an attempt without rows is not tracked. At the end it has
    `wait` seconds for the rows that are left. After that nobody waits for it: its daemon thread
    runs on as long as the process does.
    """

    def __init__(self, start: Callable[[], Tracker], wait: float) -> None:
        self._start, self._wait = start, wait
        self._rows: SimpleQueue[list[Row] | None] = SimpleQueue()  # None: no row follows
        self._held: list[Row] = []
        self._next_time = 0.0
        self._num_logged = self._num_taken = self._dropped = 0
        self._thread: threading.Thread | None = None
        self.outcome: Row = {"status": Status.FAILED}
        """What the tracker gets at the end: to be set to the trial's result, if it has one."""
        self.trouble: str | None = None
        """Why the trial is not tracked completely, in one line; None if it is."""

    def log(self, row: Row) -> None:
        """Pass a row on, soon. Return at once, whatever the tracker does."""
        if self._num_logged - self._num_taken >= CAPACITY:
            self._dropped += 1
            self.trouble = self.trouble or f"it is too slow: {CAPACITY} rows wait for it"
            return
        self._num_logged += 1
        self._held.append(row)
        if monotonic() >= self._next_time:
            self._pass_on()

    def _pass_on(self) -> None:
        self._next_time = monotonic() + PASSED_ON_EVERY
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
            self._thread.start()
        self._rows.put(self._held)
        self._held = []

    def _work(self) -> None:
        try:
            tracker = self._start()
            while (rows := self._rows.get()) is not None:
                for row in rows:
                    tracker.log(row)
                    self._num_taken += 1
            tracker.finish(self.outcome)
        except BaseException as error:  # a library may raise anything, SystemExit included
            self.trouble = f"{type(error).__name__}: {' '.join(str(error).split())}"

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is None:
            return
        if kind is not None:
            self.outcome = {"status": WITHOUT_RESULT.get(kind, Status.FAILED)}
        self._pass_on()
        self._rows.put(None)
        self._thread.join(self._wait)
        if self._thread.is_alive() and self.trouble is None:
            self.trouble = f"it was not done {self._wait:g} s after the trial's end"
        if self._dropped:
            self.trouble = f"{self.trouble} ({self._dropped} rows were dropped)"


@dataclass(frozen=True)
class Tracking:
    """A tracker for trials."""

    node: Node
    """`_target_` and its keys."""
    wait: float
    """Seconds that a trial's end waits for its tracker."""

    def note(self, store: Path) -> str | None:
        """What people must do to see the runs of `store`, in a line, if the tracker says so."""
        keys = dict(self.node)
        note = getattr(locate(keys.pop("_target_")), "note", None)
        return note(store, keys) if note else None

    def of(
        self,
        trial_id: str,
        arm: str,
        config: Mapping[str, Any],
        *,
        setting: str = "",
        sweeps: Sequence[str],
    ) -> Background:
        """Return the background tracker of one attempt at a trial: see `About`."""
        about = About(trial_id, tuple(sweeps), arm, setting, config, self.wait)
        return Background(partial(build, self.node, about), self.wait)


def take(values: dict[str, str], code: str | None = None) -> Tracking:
    """Remove `tracking` and `tracking.KEY` from `values`; return the tracker that they choose, of
    conf/ or of the folder `code` of the user's own code.

    Raises BadInput for an unknown name or key, or a value that the tracker does not allow.
    """
    name = values.pop(GROUP, "none")
    use_code(code)
    of_code = [] if code is None else sorted(Path(code, GROUP).glob("*.yaml"))
    files = {path.stem: path for path in [*of_code, *yamls(GROUP)]}
    if name not in files:
        raise one_of(GROUP, name, [*files])
    keys = {key for key in values if key.startswith(f"{GROUP}.")}
    changes = {key.partition(".")[2]: parse_value(key, values.pop(key)) for key in keys}
    return make_tracking({**_content(files[name]), **changes}, code)


def _content(path: Path) -> dict[str, Any]:
    """The keys in a tracker's YAML, which may leave out `wait`. Raises BadInput for other files."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(GROUP, path, f"must be YAML ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict) or "_target_" not in content:
        raise BadInput(GROUP, path, "must have the keys of a tracker, `_target_` among them")
    return {"wait": WAIT, **content}


def make_tracking(node: dict[str, Any], code: str | None = None) -> Tracking:
    """Return the tracker of a node: `_target_`, its keys, and `wait`; raises BadInput."""
    keys = dict(node)
    wait = keys.pop("wait")
    try:
        wait = TypeAdapter(Seconds).validate_python(wait, strict=True)
    except ValidationError:
        raise BadInput(f"{GROUP}.wait", wait, "must be seconds, from 0 to 1e8") from None
    return Tracking(check_choice(GROUP, keys, code), wait)
