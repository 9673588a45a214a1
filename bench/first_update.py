"""Seconds from the start of a sweep's command to the first rows of a trial, with Ray's own start.

    python -m bench.first_update [rounds=3] [scale=few_updates]

Rows come some updates at a time, so a part of these seconds is training.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

POLL_EVERY = 0.02


def seconds(scale: str) -> float:
    """Of one sweep in a new store, which is stopped then."""
    with TemporaryDirectory(prefix="pipegap-first-") as folder:
        words = ["sweep=main", f"scale={scale}", "seeds=[0]", f"results={folder}/results"]
        started = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "sweeps", *words], stdout=subprocess.DEVNULL
        ) as driver:
            try:
                while not _has_rows(Path(folder)):
                    assert driver.poll() is None, driver.returncode
                    time.sleep(POLL_EVERY)
                return time.perf_counter() - started
            finally:
                driver.terminate()


def _has_rows(folder: Path) -> bool:
    rows = folder.glob("results/trials/*/metrics.jsonl")
    return any(path.stat().st_size for path in rows)


def main() -> None:
    """Prints the seconds of each round."""
    given = {"rounds": "3", "scale": "few_updates"} | dict(word.split("=") for word in sys.argv[1:])
    for _ in range(int(given["rounds"])):
        print(f"{seconds(given['scale']):.1f} s", flush=True)


if __name__ == "__main__":
    main()
