"""A trial that takes a second: a small corpus and a small config in a folder of the test's own."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipegap.sweeps.plan.devices import Rates
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial, points, unique
from pipegap.sweeps.request.schema import Sweep
from pipegap.trainer.base.errors import Status
from pipegap.trainer.config.compose import compose
from pipegap.trainer.store.bucket import BucketClient
from tests.support.own_files import prepared

SMALL = [
    *("model.hidden_size=24", "model.num_layers=2", "model.intermediate_size=32", "batch_size=4"),
    *("seq_len=16", "num_updates=12", "eval_every=4", "checkpoint_every=5", "optimizer.lr=0.01"),
]


def corpus(folder: Path) -> Path:
    """About 30 KB of text, prepared as bytes."""
    texts = [f"{i} times {i + 1} is {i * (i + 1)}, and so on and on. " * 3 for i in range(300)]
    prepared(folder / "corpus", texts, validation_share=0.05)
    return folder / "corpus"


def later_wins(words: Iterable[str]) -> list[str]:
    """Of words with one key the last one."""
    return [*{word.partition("=")[0]: word for word in words}.values()]


def overrides(folder: Path, *more: str) -> list[str]:
    """Later words win."""
    if not (folder / "corpus").exists():
        corpus(folder)
    return later_wins(
        [f"data.path={folder / 'corpus'}", f"results={folder / 'results'}", *SMALL, *more]
    )


def config(folder: Path, *more: str) -> dict[str, Any]:
    """The resolved config of that trial."""
    return compose(overrides(folder, *more))


# Sweeps asked for in a few words, and their trials.

ARMS = {
    "sync": ["pipeline=sync"],
    "delay": ["pipeline=pipedream_2bw"],
    "delay_ef": ["pipeline=pipedream_2bw", "correction=error_feedback"],
}


def content(**changes: Any) -> dict[str, Any]:
    """What a sweep file says."""
    plain = {"base": [], "grid": {}, "arms": ARMS, "seeds": [0], "verdict": "none"}
    return {**plain, **changes}


def asked(sweep: Sweep, results: Path) -> list[Trial]:
    """A trial as often as points ask for it."""
    return [trial for point in points(sweep, results) for trial in point.trials(sweep.seeds)]


def only(*words: str) -> Sweep:
    """The one sweep of a command line."""
    [sweep] = parse_request(words).sweeps.values()
    return sweep


def expand(sweep: Sweep, results: Path) -> list[Trial]:
    """Each trial once."""
    return unique(asked(sweep, results))


# A small sweep as a process of its own, which can be disturbed and then looked at.

GANG = (
    "runner=pipelined",
    "pipeline.num_stages=2",
    "pipeline.num_microbatches=2",
    "num_updates=100",  # of processes that each take seconds to start
)
SWEEP = ("sweep=main", "scale=micro", "seeds=[0]", "grid.optimizer=[adamw]")
LENGTH = ("num_updates=300", "eval_every=100", "checkpoint_every=20")
TARGETS: Mapping[str, str] = {
    "driver": "-m pipegap sweep",
    "trial": "ray::ImplicitFunc",
    "rank": "ray::RankActor",
    "raylet": "raylet/raylet",
}
"""Target → a part of the command line of its processes."""
MARK = "PIPEGAP_TEST_SWEEP"
END_TIMEOUT = 900.0
"""Seconds for a sweep to come to its end, or for its processes to be gone, on a busy machine."""
POLL_EVERY = 0.02
"""Seconds: an update takes a few milliseconds, and what follows the last row of a trial longer."""


@dataclass
class SmallSweep:
    """`pipegap sweep` on a store in `folder`; its processes are known by their environment."""

    folder: Path
    words: Sequence[str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def store(self) -> str:
        """The store, as the command names it."""
        return str(self.folder / "results")

    @property
    def results(self) -> Path:
        """The folder in which the store can be read."""
        return self.folder / "results"

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Run the sweep in the background."""
        words = [*SWEEP, *self.words, f"results={self.store}"]
        return subprocess.Popen(
            [sys.executable, "-m", "pipegap", "sweep", *words],
            env={**os.environ, MARK: self.mark, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> None:
        """Run the same command to its end; raise AssertionError if it fails."""
        with self.start() as driver:
            output, _ = driver.communicate(timeout=END_TIMEOUT)
        assert driver.returncode == 0, output

    def processes(self, target: str = "") -> list[int]:
        """Return the ids of the living processes, of one target or of all, parents first."""
        ids = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                environment = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            is_ours = f"{MARK}={self.mark}".encode() in environment and state not in "ZX"
            if is_ours and TARGETS.get(target, "") in command:
                ids.append(int(folder.name))
        return sorted(ids)

    def hit(self, target: str, how: signal.Signals) -> bool:
        """Kill one process of the target; return whether there was one."""
        for process in self.processes(target)[-1:]:
            with suppress(ProcessLookupError):  # it ended by itself, just now
                os.kill(process, how)
                return True
        return False

    def table(self) -> str:
        """The table of gaps in the sweep's report."""
        return (self.results / "reports/main-micro/gaps.csv").read_text()

    def has_begun(self) -> bool:
        """Whether one of its trials has an attempt."""
        return any(self.results.glob("trials/*/attempt-*.json"))

    def num_updates(self) -> int:
        """Rows of metrics of all its trials so far; the last row of a trial may be half written."""
        metrics = self.results.glob("trials/*/metrics.jsonl")
        return sum(path.read_bytes().count(b"\n") for path in metrics)

    def attempts(self) -> dict[str, list[dict[str, Any]]]:
        """Return the attempts of every trial, in their order."""
        trials = sorted((self.results / "trials").iterdir())
        return {
            trial.name: [json.loads(path.read_text()) for path in sorted(trial.glob("attempt-*"))]
            for trial in trials
        }

    def records(self) -> dict[str, list[int]]:
        """Return, by trial, the numbers of the updates in its metrics.jsonl."""
        return {
            path.parent.name: [json.loads(line)["update"] for line in path.read_text().splitlines()]
            for path in sorted(self.results.glob("trials/*/metrics.jsonl"))
        }

    def left_over(self) -> Sequence[object]:
        """Return what the sweep left in the store that belongs to no trial."""
        return []


@dataclass
class BucketSweep(SmallSweep):
    """A small sweep whose store is `bucket`, such as `s3://bucket`, under a prefix of its own.

    Its machine's copy of the store and the folders of its running trials lie in `folder`. The
    provider's usual variables say where the server is and how to sign requests.
    """

    bucket: str = ""
    _rows: dict[str, int] = field(default_factory=dict)
    """Trial → the most rows that it was seen to have in a folder of a running trial."""

    @property
    def store(self) -> str:
        """The URL of the store."""
        return f"{self.bucket}/{self.mark}"

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Run the sweep in the background, with its copy of the store in its own folder."""
        return super().start(**{"XDG_CACHE_HOME": str(self.folder), **environment})

    @property
    def _place(self) -> Path:
        return next(self.folder.glob("pipegap/stores/*"), self.folder)

    @property
    def results(self) -> Path:
        """The machine's copy of the store."""
        return self._place / "copy"

    def has_begun(self) -> bool:
        """Whether one of its trials runs or ran."""
        return bool(self._rows) or any(self._place.glob("work/trial-*/attempt-*.json"))

    def num_updates(self) -> int:
        """Rows of metrics of the trials that run, and of those that were seen to run."""
        for folder in [*self._place.glob("work/trial-*"), *self.results.glob("trials/*")]:
            with suppress(OSError):
                trial_id = (folder / "trial_id").read_text()
                num_rows = (folder / "metrics.jsonl").read_bytes().count(b"\n")
                self._rows[trial_id] = max(num_rows, self._rows.get(trial_id, 0))
        return sum(self._rows.values())

    def left_over(self) -> Sequence[str]:
        """Return the keys of checkpoints: no trial that has finished needs one."""
        metas = BucketClient(self.store).list("trials")
        return sorted(meta.key for meta in metas if "checkpoint-" in meta.key)


def disturb(
    sweep: SmallSweep, target: str, how: signal.Signals, moment: int, num_drivers: int = 1
) -> tuple[bool, list[int]]:
    """Kill one process of the target once the trials have done `moment` updates.

    So many drivers run the sweep together; waits for all of them to end. Returns whether there was
    a process to kill, and the exit codes of the drivers.
    """
    with ExitStack() as running:
        drivers = [running.enter_context(sweep.start()) for _ in range(num_drivers)]
        for driver in drivers:
            running.callback(driver.kill)
        while not (sweep.num_updates() >= moment and sweep.has_begun()):
            for driver in drivers:
                assert driver.poll() is None, driver.communicate()
            time.sleep(POLL_EVERY)
        is_killed = sweep.hit(target, how)
        for driver in drivers:
            driver.communicate(timeout=END_TIMEOUT)
        return is_killed, [driver.returncode for driver in drivers]


def check(sweep: SmallSweep, whole: SmallSweep) -> None:
    """Compare a sweep with one that ran undisturbed.

    Raises AssertionError if a trial was lost or run twice, a process is left, or the table is not
    equal to the last bit.
    """
    deadline = time.monotonic() + END_TIMEOUT
    while left := sweep.processes():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert not sweep.left_over()
    assert sweep.table() == whole.table()
    assert sweep.records() == whole.records()
    assert sweep.attempts().keys() == whole.attempts().keys()
    for attempts in sweep.attempts().values():
        trained = [attempt.get("ended") for attempt in attempts if "from_update" in attempt]
        assert trained.index(Status.COMPLETED) == len(trained) - 1, "nothing trains what is done"


# What a core of a Zen 4 was measured to do (27 November 2026), as were trials on it.

ZEN_4 = Rates({"float32": 104e9, "bfloat16": 209e9}, bytes=92e9, operation=0.68e-6)
