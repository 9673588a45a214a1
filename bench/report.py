"""How long the report of many trials takes, and how large its page is.

    python -m bench.report [trials=10000]

The store is that of bench.load, with the validation losses of each trial and a record of a sweep
of learning rates that compares them all.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from analysis.report.report import report
from bench.load import make_store

NUM_EVALUATIONS = 4
SWEEPS = ("learning_rate", "optimizers")


def _add_losses(store: Path) -> None:
    chance = random.Random(0)
    for folder in (store / "trials").iterdir():
        rows = [
            {
                "update": 100 * (k + 1) - 1,
                "train_loss": 2.0,
                "val_loss": 3.0 / (k + chance.random()),
            }
            for k in range(1, NUM_EVALUATIONS + 1)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _add_records(store: Path) -> None:
    names = sorted(folder.name for folder in (store / "trials").iterdir())
    asked = {"arm": "delay", "seed": 0, "tokens": 819_200, "flops": 2e12, "seconds": 50.0}
    (store / "sweeps").mkdir()
    for sweep in SWEEPS:
        record = {
            **{"sweep": sweep, "scale": "tiny", "label": f"{sweep}-tiny"},
            "words": [f"sweep={sweep}", "scale=tiny"],
            **{"verdict": "", "arms": [], "seeds": [], "settled": True, "remarks": []},
            **{"compared": names, "trials": dict.fromkeys(names, asked)},
        }
        (store / "sweeps" / f"{sweep}-tiny.json").write_text(json.dumps(record))


def main(words: list[str]) -> None:
    """Prints seconds, sizes and memory."""
    given = dict(word.split("=") for word in words)
    with tempfile.TemporaryDirectory(prefix="pipegap-bench-") as folder:
        store, out = Path(folder, "results"), Path(folder, "report")
        store.mkdir()
        make_store(store, int(given.get("trials", 10_000)))
        _add_losses(store)
        _add_records(store)
        started, busy = time.monotonic(), time.process_time()
        report(store, out)
        seconds, busy = time.monotonic() - started, time.process_time() - busy
        size = (out / "index.html").stat().st_size
        files = [path for path in out.rglob("*") if path.is_file()]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{seconds:.1f} s, {busy:.1f} s of CPU: {len(files)} files, index.html {size / 1e6:.1f} MB"
    )
    print(f"peak memory of the process {memory / 1e9:.2f} GB")


if __name__ == "__main__":
    main(sys.argv[1:])
