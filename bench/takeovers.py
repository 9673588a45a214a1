"""Takes a driver out for longer than a lease lasts, beside a second driver on the same store.

`python -m bench.takeovers [moments=5] [seed=0] [ways=frozen,container]` does each at `moments`
random moments, numbers of updates as those of bench.kills, and prints a table:

* frozen: every process of the first driver is stopped, as by a machine's long sleep, until the
  second driver has ended; then it goes on.
* container: each driver has a PID namespace of its own, as containers have, so that neither sees
  whether the other lives. The first one's namespace is killed. Needs root, or unprivileged
  namespaces.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.kills import END_TIMEOUT, LENGTH, SMALL, Sweep, check, wait_for
from trainer.folder.lease import STALE_AFTER

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
TIMEOUT = END_TIMEOUT + STALE_AFTER


def frozen(sweep: Sweep, moment: int) -> None:
    """Raises AssertionError if a driver does not end with 0."""
    with sweep.start() as first:
        try:
            wait_for(sweep, moment, first)
            _send(sweep, signal.SIGSTOP)
            _end(sweep.start())
            _send(sweep, signal.SIGCONT)
            _end(first)
        finally:
            _send(sweep, signal.SIGCONT)
            first.kill()


def container(sweep: Sweep, moment: int) -> None:
    """Raises AssertionError if the second driver does not end with 0."""
    contained = replace(sweep, command=NAMESPACE)
    with contained.start() as first:
        try:
            wait_for(sweep, moment, first)
        finally:
            first.kill()  # and with it its namespace
    _end(contained.start())


WAYS: Mapping[str, Callable[[Sweep, int], None]] = {"frozen": frozen, "container": container}


def _send(sweep: Sweep, how: signal.Signals) -> None:
    for process in sweep.processes():
        with suppress(ProcessLookupError):  # it ended just now
            os.kill(process, how)


def _end(driver: subprocess.Popen[str]) -> None:
    try:
        said, _ = driver.communicate(timeout=TIMEOUT)
    finally:
        driver.kill()
    assert driver.returncode == 0, said


def taken_over(sweep: Sweep) -> int:
    """Of how many trials another attempt trained on after one that never ended."""
    of_trials = sweep.attempts().values()
    return sum(any("ended" not in attempt for attempt in attempts) for attempts in of_trials)


def main() -> None:
    """Prints one row per way; exits with 1 if one moment was not survived."""
    given = {"moments": "5", "seed": "0", "ways": ",".join(WAYS)}
    given |= dict(word.split("=") for word in sys.argv[1:])
    generator, failures = random.Random(int(given["seed"])), 0
    print("| first driver | moments | took over a trial | intact | seconds |")
    print("| --- | --- | --- | --- | --- |")
    with TemporaryDirectory(prefix="pipegap-takeovers-") as scratch:
        whole = Sweep(Path(scratch) / "whole", (*SMALL, *LENGTH))
        whole.finish()
        for way in given["ways"].split(","):
            moments = [
                generator.randrange(whole.num_updates()) for _ in range(int(given["moments"]))
            ]
            started = time.monotonic()
            outcomes = [_survives(Path(scratch), whole, way, moment) for moment in moments]
            failures += outcomes.count(None)
            took = [outcome for outcome in outcomes if outcome is not None]
            print(
                f"| {way} | {len(moments)} | {sum(map(bool, took))} | "
                f"{len(took)} of {len(moments)} | {time.monotonic() - started:.0f} |",
                flush=True,
            )
    sys.exit(failures > 0)


def _survives(scratch: Path, whole: Sweep, way: str, moment: int) -> int | None:
    """How many trials were taken over; None if the sweep was not intact."""
    sweep = Sweep(scratch / uuid.uuid4().hex, whole.words)
    try:
        WAYS[way](sweep, moment)
        check(sweep, whole)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        print(f"{way} after {moment} updates: {error}", file=sys.stderr, flush=True)
        return None
    return taken_over(sweep)


if __name__ == "__main__":
    main()
