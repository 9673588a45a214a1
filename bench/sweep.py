"""What `pipegap sweep` costs beside training, to plan and to start, and whether it survives.

    python -m bench.sweep planning [rounds=3]
    python -m bench.sweep first_update [rounds=3] [scale=few_updates]
    python -m bench.sweep kills [moments=20] …

`planning`: the whole command with `dry_run=true`, for 10,000 trials. `first_update`: from the
command to the first rows of a trial, with Ray's own start; rows come some updates at a time, so a
part of these seconds is training. `kills`: see bench/kills.py.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import yaml

from bench.kills import kills
from bench.timing import options

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
POLL_EVERY = 0.02


def planning(folder: Path, words: Sequence[str]) -> None:
    """Prints what the last round planned, and the median seconds."""
    path, rounds = folder / "large.yaml", options(words, rounds=3).rounds
    path.write_text(yaml.safe_dump(LARGE_SWEEP))
    command = (*COMMAND, f"sweep={path}", f"results={folder}/results", "dry_run=true")
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds.append(time.perf_counter() - started)
    print(done.stdout.splitlines()[0])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (used.ru_utime + used.ru_stime) / rounds
    times = ", ".join(f"{each:.1f}" for each in seconds)
    print(f"{median(seconds):.1f} s by the clock (median of {times}), {cpu:.1f} s of CPU (mean)")


def first_update(folder: Path, words: Sequence[str]) -> None:
    """Prints the seconds of each round: a sweep in a new store, which is stopped then."""
    given = options(words, rounds=3, scale="few_updates")
    for number in range(given.rounds):
        results = folder / str(number)
        command = (
            *COMMAND,
            "sweep=main",
            f"scale={given.scale}",
            "seeds=[0]",
            f"results={results}",
        )
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as driver:
            try:
                while not _has_rows(results):
                    assert driver.poll() is None, driver.returncode
                    time.sleep(POLL_EVERY)
                print(f"{time.perf_counter() - started:.1f} s", flush=True)
            finally:
                driver.terminate()


def _has_rows(results: Path) -> bool:
    return any(path.stat().st_size for path in results.glob("trials/*/metrics.jsonl"))


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
