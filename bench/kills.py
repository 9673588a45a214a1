"""Kills the driver, a trial, a rank or the raylet of a small sweep, and looks at what became of it.

    python -m bench.sweep kills [moments=20] [seed=0] [targets=driver,trial,rank,raylet]
        [signals=SIGKILL,SIGTERM] [bucket=s3://BUCKET] [drivers=1]

Each target is killed at `moments` random moments with each signal. A moment is a number of updates
that the sweep's trials have done together, so that it comes while they are at work, however busy
the machine is. If there was no process of the target just then, the moment does not count, and
another one is tried.

So many `drivers` run the sweep together in a folder; one of them is killed, and the others go on.

With `bucket` the store is a bucket, which the provider's usual variables lead to. A server for it
on this machine: `.venv/moto/bin/moto_server -p 9000`, after `make moto`.
"""

import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from bench.timing import options
from tests.support.small_sweep import GANG, LENGTH, TARGETS, BucketSweep, SmallSweep, check, disturb

SMALL = ("model.hidden_size=24", "model.intermediate_size=32", "model.num_layers=2")
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
Make = Callable[[Path, Sequence[str]], SmallSweep]
"""Makes a sweep in a folder, with these words."""
Kill = tuple[str, signal.Signals]


def kills(folder: Path, words: Sequence[str]) -> None:
    """Prints a row per target and signal, each up to its first loss; exits with 1 if any."""
    words_of = {"targets": ",".join(TARGETS), "signals": ",".join(how.name for how in SIGNALS)}
    given = options(words, moments=20, seed=0, drivers=1, bucket="", **words_of)
    generator = random.Random(given.seed)
    signals = [how for how in SIGNALS if how.name in given.signals.split(",")]
    wanted = [*product(given.targets.split(","), signals)]
    assert {target for target, _ in wanted} <= {*TARGETS}, given.targets
    make: Make = partial(BucketSweep, bucket=given.bucket) if given.bucket else SmallSweep
    failures = 0
    print("| killed | by | hits | exit codes of the drivers | intact | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for of_sweep, rows in _by_sweep(wanted).items():
        whole = make(folder / f"whole{len(of_sweep)}", of_sweep)
        whole.finish()
        for kill in rows:
            failures += _try(kill, given.moments, given.drivers, generator, whole, make, folder)
    sys.exit(failures > 0)


def _by_sweep(kills: Sequence[Kill]) -> dict[tuple[str, ...], list[Kill]]:
    """The kills by the sweep that they need: only gangs have ranks."""
    rows: dict[tuple[str, ...], list[Kill]] = {}
    for kill in kills:
        gang = GANG if kill[0] == "rank" else ()
        rows.setdefault((*SMALL, *LENGTH, *gang), []).append(kill)
    return rows


def _try(
    kill: Kill,
    moments: int,
    num_drivers: int,
    generator: random.Random,
    whole: SmallSweep,
    make: Make,
    scratch: Path,
) -> int:
    """Prints a row of the table; returns how many sweeps were not intact."""
    target, how = kill
    started, exits, tried, intact = time.monotonic(), Counter[str](), 0, 0
    while exits.total() < moments and intact == tried:
        sweep = make(scratch / uuid.uuid4().hex, whole.words)
        moment = generator.randrange(whole.num_updates())
        tried += 1
        intact += _survives(sweep, whole, kill, moment, num_drivers, exits)
    codes = ", ".join(f"{code}: {count}" for code, count in sorted(exits.items()))
    print(
        f"| {target} | {how.name} | {exits.total()} of {tried} | {codes} | "
        f"{intact} of {tried} | {time.monotonic() - started:.0f} |",
        flush=True,
    )
    return tried - intact


def _survives(
    sweep: SmallSweep,
    whole: SmallSweep,
    kill: Kill,
    moment: int,
    num_drivers: int,
    exits: Counter[str],
) -> bool:
    """Whether a disturbed sweep ends as the whole one did; counts its exit codes if it was hit."""
    target, how = kill
    try:
        is_killed, codes = disturb(sweep, target, how, moment, num_drivers)
        if is_killed:
            exits[" and ".join(map(str, sorted(codes)))] += 1
        sweep.finish()
        check(sweep, whole)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        print(f"{target} {how.name} after {moment} updates: {error}", file=sys.stderr, flush=True)
        return False
    return True
