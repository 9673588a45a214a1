"""Seconds to plan a large sweep: the whole command `python -m sweeps … dry_run=true`.

`python -m bench.planning [rounds=3]`
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import yaml

POINTS, SEEDS = 1_000, 5
SWEEP = {
    "grid": {
        "optimizer": ["adamw", "muon", "soap", "ademamix"],
        "optimizer.lr": [round(0.0001 * (i + 1), 6) for i in range(POINTS // 4)],
    },
    "arms": {"sync": ["pipeline=sync"], "delay": ["pipeline=pipedream_2bw"]},
    "seeds": [*range(SEEDS)],
    "verdict": "none: only its plan is timed",
}


def main() -> None:
    """Prints what the last round planned, and the median."""
    rounds = int(dict(word.split("=") for word in sys.argv[1:]).get("rounds", 3))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.yaml"
        path.write_text(yaml.safe_dump(SWEEP))
        words = [f"sweep={path}", f"results={folder}/results", "dry_run=true"]
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "sweeps", *words], check=True, capture_output=True, text=True
            )
            seconds.append(time.perf_counter() - started)
    print(done.stdout.splitlines()[0])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (used.ru_utime + used.ru_stime) / rounds
    times = ", ".join(f"{one:.1f}" for one in seconds)
    print(f"{median(seconds):.1f} s by the clock (median of {times}), {cpu:.1f} s of CPU (mean)")


if __name__ == "__main__":
    main()
