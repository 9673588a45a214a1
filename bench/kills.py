"""Kills the driver, a trial, a rank or the raylet of a small sweep, and looks at what became of it.

`python -m bench.kills [moments=20] [seed=0] [targets=driver,trial,rank,raylet]
[signals=SIGKILL,SIGTERM] [store=files]` kills each target at `moments` random moments with each
signal, and prints a table. A moment is a number of updates that the sweep's trials have done
together, so that it comes while they are at work, however busy the machine is. If there was no
process of the target just then, the moment does not count, and another one is tried.

With `store=objects` the store is a bucket of a server that runs here. There `targets=network` cuts
all connections to it, for longer than a lease lasts, whatever the signal.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainer.base.status import Status

GANG = (
    "runner=pipelined",
    "pipeline.num_stages=2",
    "pipeline.num_microbatches=2",
    "num_updates=100",  # of processes that each take seconds to start
)
SWEEP = ("sweep=main", "scale=micro", "seeds=[0]", "grid.optimizer=[adamw]")
SMALL = ("model.hidden_size=24", "model.intermediate_size=32", "model.num_layers=2")
LENGTH = ("num_updates=300", "eval_every=100", "checkpoint_every=20")
Row = tuple[str, signal.Signals]
TARGETS: Mapping[str, str] = {
    "driver": "-m sweeps",
    "trial": "ray::ImplicitFunc",
    "rank": "ray::RankActor",
    "raylet": "raylet/raylet",
}
"""Target → a part of the command line of its processes."""
NETWORK = "network"
"""What else can be hit of an object store."""
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
MARK = "PIPEGAP_TEST_SWEEP"
END_TIMEOUT = 900.0
"""Seconds for a sweep to come to its end, or for its processes to be gone, on a busy machine."""
POLL_EVERY = 0.02
"""Seconds: an update takes a few milliseconds, and what follows the last row of a trial longer."""


@dataclass
class Sweep:
    """`python -m sweeps` on a store of its own; its processes are known by their environment."""

    folder: Path
    words: Sequence[str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    command: Sequence[str] = ()
    """What starts the driver, such as `unshare`."""

    @property
    def where(self) -> str:
        """The store, as the command names it."""
        return str(self.folder / "results")

    @property
    def results(self) -> Path:
        """Where the store can be read."""
        return self.folder / "results"

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of its processes."""
        return {}

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Runs it in the background."""
        words = [*SWEEP, *self.words, f"results={self.where}"]
        return subprocess.Popen(
            [*self.command, sys.executable, "-m", "sweeps", *words],
            env={**os.environ, MARK: self.mark, **self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> None:
        """Runs the same command to its end."""
        with self.start() as driver:
            said, _ = driver.communicate(timeout=END_TIMEOUT)
        assert driver.returncode == 0, said

    def processes(self, target: str = "") -> list[int]:
        """Ids of the living processes, of one target or of all, parents first."""
        found = []
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
                found.append(int(folder.name))
        return sorted(found)

    def table(self) -> str:
        """The table of gaps that it reports."""
        return (self.results / "reports/main-micro/gaps.csv").read_text()

    def has_begun(self) -> bool:
        """Whether one of its trials has an attempt."""
        return any(self.results.glob("trials/*/attempt-*.json"))

    def hit(self, target: str, how: signal.Signals) -> bool:
        """Kills one process of the target; returns whether there was one."""
        return _kill(self.processes(target)[-1:], how)

    def left_over(self) -> Sequence[object]:
        """What it has left in the store that belongs to no trial."""
        return []

    def num_updates(self) -> int:
        """Of all its trials together, so far: rows of metrics, the last perhaps half written."""
        metrics = self.results.glob("trials/*/metrics.jsonl")
        return sum(path.read_bytes().count(b"\n") for path in metrics)

    def attempts(self) -> dict[str, list[dict[str, Any]]]:
        """The attempts of every trial, in their order."""
        trials = sorted((self.results / "trials").iterdir())
        return {
            trial.name: [json.loads(path.read_text()) for path in sorted(trial.glob("attempt-*"))]
            for trial in trials
        }

    def records(self) -> dict[str, list[int]]:
        """Trial → the updates in its metrics.jsonl."""
        return {
            path.parent.name: [json.loads(line)["update"] for line in path.read_text().splitlines()]
            for path in sorted(self.results.glob("trials/*/metrics.jsonl"))
        }


def disturb(sweep: Sweep, target: str, how: signal.Signals, moment: int) -> tuple[bool, int]:
    """Kills one process of the target once the trials have done `moment` updates.

    Then waits for the sweep to end. Returns whether there was a process to kill, and the exit code
    of the driver.
    """
    with sweep.start() as driver:
        try:
            wait_for(sweep, moment, driver)
            is_killed = sweep.hit(target, how)
            driver.communicate(timeout=END_TIMEOUT)
        finally:
            driver.kill()
    return is_killed, driver.returncode


def wait_for(sweep: Sweep, moment: int, driver: subprocess.Popen[str]) -> None:
    """Returns once the trials have done so many updates; 0: once one of them has an attempt."""
    while not (sweep.num_updates() >= moment and sweep.has_begun()):
        assert driver.poll() is None, driver.communicate()
        time.sleep(POLL_EVERY)


def _kill(processes: Sequence[int], how: signal.Signals) -> bool:
    try:
        for process in processes:
            os.kill(process, how)
    except ProcessLookupError:  # it ended by itself, just now
        return False
    return bool(processes)


def check(sweep: Sweep, whole: Sweep) -> None:
    """Raises AssertionError if a trial was lost or run twice, a process is left, or the table is
    not the same to the last bit.
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


def main() -> None:
    """Prints one row per target and signal, each up to its first loss; exits with 1 if any."""
    given = {"moments": "20", "seed": "0", "targets": ",".join(TARGETS), "store": "files"}
    given |= {"signals": ",".join(how.name for how in SIGNALS)}
    given |= dict(word.split("=") for word in sys.argv[1:])
    moments, generator = int(given["moments"]), random.Random(int(given["seed"]))
    signals = [how for how in SIGNALS if how.name in given["signals"].split(",")]
    asked = [*product(given["targets"].split(","), signals)]
    unknown = {target for target, _ in asked} - {*TARGETS, NETWORK}
    assert not unknown, unknown
    failures = 0
    print("| killed | by | hits | exit codes of the driver | intact | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    with (
        TemporaryDirectory(prefix="pipegap-kills-") as scratch,
        STORES[given["store"]]() as sweep_in,
    ):
        for words, rows in _by_sweep(asked).items():
            whole = sweep_in(Path(scratch) / f"whole{len(words)}", words)
            whole.finish()
            for target, how in rows:
                started, exits, tried, intact = time.monotonic(), Counter[int](), 0, 0
                while exits.total() < moments and intact == tried:
                    sweep = sweep_in(Path(scratch) / uuid.uuid4().hex, words)
                    moment = generator.randrange(whole.num_updates())
                    tried += 1
                    intact += _survives(sweep, whole, target, how, moment, exits)
                failures += tried - intact
                codes = ", ".join(f"{code}: {count}" for code, count in sorted(exits.items()))
                print(
                    f"| {target} | {how.name} | {exits.total()} of {tried} | {codes} | "
                    f"{intact} of {tried} | {time.monotonic() - started:.0f} |",
                    flush=True,
                )
    sys.exit(failures > 0)


Make = Callable[[Path, Sequence[str]], Sweep]
"""Makes a sweep in a folder, with these words."""


@contextmanager
def _in_bucket() -> Iterator[Make]:
    from tests.support.bucket_sweep import BucketSweep
    from tests.support.s3_server import serving

    with serving() as (bucket, port):
        yield lambda folder, words: BucketSweep(folder, words, bucket=bucket, port=port)


STORES: Mapping[str, Callable[[], AbstractContextManager[Make]]] = {
    "files": lambda: nullcontext(Sweep),
    "objects": _in_bucket,
}
"""Kind of store → context with what makes a sweep in a folder."""


def _by_sweep(asked: Sequence[Row]) -> dict[tuple[str, ...], list[Row]]:
    """The rows by the sweep that they need: ranks exist in gangs only, other targets need none."""
    rows: dict[tuple[str, ...], list[Row]] = {}
    for row in asked:
        gang = GANG if row[0] == "rank" else ()
        rows.setdefault((*SMALL, *LENGTH, *gang), []).append(row)
    return rows


def _survives(
    sweep: Sweep,
    whole: Sweep,
    target: str,
    how: signal.Signals,
    moment: int,
    exits: Counter[int],
) -> bool:
    try:
        is_killed, code = disturb(sweep, target, how, moment)
        if is_killed:
            exits[code] += 1
        sweep.finish()
        check(sweep, whole)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        print(f"{target} {how.name} after {moment} updates: {error}", file=sys.stderr, flush=True)
        return False
    return True


if __name__ == "__main__":
    main()
