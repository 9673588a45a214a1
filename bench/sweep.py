"""What `pipegap sweep` costs beside training, to plan and to start, and whether it survives.

    python -m bench.sweep planning [rounds=3]
    python -m bench.sweep first_update [rounds=3] [scale=few_updates]
    python -m bench.sweep kills [moments=20] [seed=0] [targets=driver,trial,rank,raylet]
        [signals=SIGKILL,SIGTERM] [bucket=s3://BUCKET] [drivers=1]

`planning`: the whole command with `dry_run=true`, for 10,000 trials. `first_update`: from the
command to the first rows of a trial, with Ray's own start; rows come some updates at a time, so a
part of these seconds is training.

`kills`: each target of a small sweep is killed at `moments` random moments with each signal, and
what became of the sweep is compared with one that nobody disturbed. A moment is a number of updates
that the sweep's trials have done together, so that it comes while they are at work, however busy
the machine is. If there was no process of the target just then, the moment does not count, and
another one is tried. So many `drivers` run the sweep together; one of them is killed, and the
others go on. With `bucket` the store is a bucket, which the provider's usual variables lead to. A
server for it on this machine, which prints these: `python -m tests.support.s3_server 9000`.
"""

import random
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import yaml

from bench.timing import options, seconds_of
from tests.support.small_sweep import GANG, LENGTH, TARGETS, BucketSweep, SmallSweep, check, disturb

COMMAND = (sys.executable, "-m", "pipegap", "sweep")
POINTS, SEEDS = 1_000, 5
LARGE_SWEEP = {
    "grid": {
        "optimizer": ["adamw", "muon", "soap", "ademamix"],
        "optimizer.lr": [round(0.0001 * (i + 1), 6) for i in range(POINTS // 4)],
    },
    "arms": {"sync": ["pipeline=sync"], "delay": ["pipeline=pipedream_2bw"]},
    "seeds": [*range(SEEDS)],
    "verdict": "none: only its plan is timed",
}
SMALL = ("model.hidden_size=24", "model.intermediate_size=32", "model.num_layers=2")
SIGNALS = (signal.SIGKILL, signal.SIGTERM)


def planning(folder: Path, words: Sequence[str]) -> None:
    """Prints the median seconds."""
    path, rounds = folder / "large.yaml", options(words, rounds=3).rounds
    path.write_text(yaml.safe_dump(LARGE_SWEEP))
    command = (*COMMAND, f"sweep={path}", f"results={folder}/results", "dry_run=true")
    run = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    seconds = [seconds_of(run) for _ in range(rounds)]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of all rounds together
    cpu = (used.ru_utime + used.ru_stime) / rounds
    times = ", ".join(f"{of_round:.1f}" for of_round in seconds)
    print(f"{median(seconds):.1f} s by the clock (median of {times}), {cpu:.1f} s of CPU (mean)")


def first_update(folder: Path, words: Sequence[str]) -> None:
    """Prints the seconds of each round: a sweep in a new store, which is stopped then."""
    values = options(words, rounds=3, scale="few_updates")
    for number in range(values.rounds):
        results = folder / str(number)
        words_of_sweep = ("sweep=main", f"scale={values.scale}", "seeds=[0]", f"results={results}")
        started = time.perf_counter()
        with subprocess.Popen((*COMMAND, *words_of_sweep), stdout=subprocess.DEVNULL) as driver:
            try:
                while not any(p.stat().st_size for p in results.glob("trials/*/metrics.jsonl")):
                    assert driver.poll() is None, driver.returncode
                    time.sleep(0.02)
                print(f"{time.perf_counter() - started:.1f} s", flush=True)
            finally:
                driver.terminate()


def kills(folder: Path, words: Sequence[str]) -> None:
    """Prints a row per target and signal, each up to its first loss; exits with 1 if any."""
    words_of = {"targets": ",".join(TARGETS), "signals": ",".join(how.name for how in SIGNALS)}
    values = options(words, moments=20, seed=0, drivers=1, bucket="", **words_of)
    signals = [how for how in SIGNALS if how.name in values.signals.split(",")]
    targets = values.targets.split(",")
    assert {*targets} <= {*TARGETS}, values.targets
    make = partial(BucketSweep, bucket=values.bucket) if values.bucket else SmallSweep
    generator, num_lost, undisturbed = random.Random(values.seed), 0, dict[bool, SmallSweep]()
    print("| killed | by | hits | exit codes of the drivers | intact | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for target, how in product(targets, signals):
        of_ranks = target == "rank"  # only gangs have ranks
        if of_ranks not in undisturbed:
            sweep_words = (*SMALL, *LENGTH, *(GANG if of_ranks else ()))
            undisturbed[of_ranks] = make(folder / f"whole-{of_ranks}", sweep_words)
            undisturbed[of_ranks].finish()
        whole, exits, started = undisturbed[of_ranks], Counter[str](), time.monotonic()
        tried = intact = 0
        # A moment at which no process of the target was there does not count.
        while exits.total() < values.moments and intact == tried:
            sweep = make(folder / uuid.uuid4().hex, whole.words)
            moment = generator.randrange(whole.num_updates())
            tried += 1
            intact += _survives(sweep, whole, (target, how, moment, values.drivers), exits)
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(exits.items()))
        print(
            f"| {target} | {how.name} | {exits.total()} of {tried} | {codes} | "
            f"{intact} of {tried} | {time.monotonic() - started:.0f} |",
            flush=True,
        )
        num_lost += tried - intact
    sys.exit(num_lost > 0)


def _survives(
    sweep: SmallSweep,
    whole: SmallSweep,
    kill: tuple[str, signal.Signals, int, int],
    exits: Counter[str],
) -> bool:
    """Whether a disturbed sweep ends as the whole one did; counts its exit codes if it was hit.

    `kill`: the arguments of `disturb`.
    """
    try:
        is_killed, codes = disturb(sweep, *kill)
        if is_killed:
            exits[" and ".join(map(str, sorted(codes)))] += 1
        sweep.finish()
        check(sweep, whole)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        print(f"{kill}: {error}", file=sys.stderr, flush=True)
        return False
    return True


PARTS: Mapping[str, Callable[[Path, Sequence[str]], None]] = {
    "planning": planning,
    "first_update": first_update,
    "kills": kills,
}


def main() -> None:
    """Measures one part."""
    part, *words = sys.argv[1:]
    with TemporaryDirectory(prefix="pipegap-bench-") as folder:
        PARTS[part](Path(folder), words)


if __name__ == "__main__":
    main()
