"""How long a store of many trials takes to become a table.

    python -m bench.load [trials=100000]

The store has as many configs and results as a grid of optimizers, learning rates, arms and seeds,
of which some diverged, failed or are not finished. It lies in a temporary folder, and becomes a
table from its files, then from its index.
"""

import hashlib
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

from analysis import load
from trainer.base.status import ENDED, Status
from trainer.config.compose import compose

OPTIMIZERS = ("adamw", "muon", "soap", "adan", "lion")
ARMS = {
    "sync": ["pipeline=sync"],
    "delay": ["pipeline=pipedream_2bw"],
    "delay_ef": ["pipeline=pipedream_2bw", "correction=error_feedback"],
}
LEARNING_RATES = 100


def _configs() -> Iterator[dict[str, Any]]:
    composed = [
        compose([f"optimizer={optimizer}", *arm])
        for optimizer, arm in product(OPTIMIZERS, ARMS.values())
    ]
    for seed, step, config in product(range(10**6), range(LEARNING_RATES), composed):
        optimizer = {**config["optimizer"], "lr": 0.001 * 1.05**step}
        yield {**config, "optimizer": optimizer, "seed": seed}


def _result(trial_id: str, config: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    status = chance.choices(ENDED, [94, 4, 2])[0]
    made = {
        "trial_id": trial_id,
        "data_hash": "d" * 64,
        "trainer_version": 2,
        "git": "0" * 40,
        "versions": {
            "python": "3.11.7",
            "torch": "2.13.0",
            "numpy": "2.4",
            "pytorch_optimizer": "4",
        },
        "device_name": "AMD EPYC",
        "status": status,
        "final_val_loss": chance.gauss(2.0, 0.1) if status == Status.COMPLETED else None,
        "diverged_at": 17 if status == Status.DIVERGED else None,
        "seed": config["seed"],
        "num_updates": 400,
        "num_parameters": 450_000,
    }
    if status == Status.FAILED:
        return {**made, "error": "Traceback (most recent call last):\n" + "  File …\n" * 20}
    return {
        **made,
        "tokens": 819_200,
        "epochs": 0.17,
        "wall_seconds": chance.uniform(40, 60),
        "tokens_per_second": chance.uniform(15_000, 20_000),
        "delays": [0] if config["pipeline"]["_target_"].endswith("sync") else [1],
        "layers_by_stage": [4],
        "peak_memory_bytes": 10**9,
    }


def make_store(store: Path, num_trials: int) -> None:
    """Configs and results of so many trials."""
    chance = random.Random(0)
    for config in islice(_configs(), num_trials):
        content = json.dumps(config, indent=1)
        trial_id = hashlib.sha256(content.encode()).hexdigest()[:16]
        folder = store / "trials" / trial_id
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(content)
        if chance.random() < 0.97:
            result = json.dumps(_result(trial_id, config, chance), indent=1)
            (folder / "result.json").write_text(result)


def main(words: list[str]) -> None:
    """Prints a line for each way to load, then the size of the index."""
    given = dict(word.split("=") for word in words)
    with tempfile.TemporaryDirectory(prefix="pipegap-bench-") as folder:
        store = Path(folder)
        make_store(store, int(given.get("trials", 100_000)))
        for name in ("from the files, index written", "from the index", "from the index, again"):
            started, busy = time.monotonic(), time.process_time()
            shape = load(store).shape
            seconds, busy = time.monotonic() - started, time.process_time() - busy
            print(
                f"{seconds:6.1f} s, {busy:5.1f} s of CPU  {name}: {shape} rows and columns",
                flush=True,
            )
        size = (store / ".index" / "trials.parquet").stat().st_size
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"index {size / 1e6:.1f} MB, peak memory of the process {memory / 1e9:.2f} GB")


if __name__ == "__main__":
    main(sys.argv[1:])
