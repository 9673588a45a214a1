"""How long a store of many trials takes to become a table.

    python -m bench.load [trials=100000]
    python -m bench.load bucket=true [trials=10000] [latency=0.02]

The store has as many configs and results as a grid of optimizers, learning rates, arms and seeds,
of which some diverged, failed or are not finished. It lies in a temporary folder, and becomes a
table from its files, then from its index. With `bucket=true` it is an object store in this
process's memory, with rows of 60 KB for each trial; each request takes `latency` seconds more,
which is simulated, and a listing takes one request per 1,000 objects.
"""

import hashlib
import json
import os
import random
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, product
from math import ceil
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore

from analysis import load
from analysis.objects import register
from analysis.objects.bucket import BucketClient, Meta
from analysis.objects.mirror import Mirror
from analysis.objects.register import Register
from trainer.base.status import ENDED, Status
from trainer.config.compose import compose

OPTIMIZERS = ("adamw", "muon", "soap", "adan", "lion")
ARMS = {
    "sync": ["pipeline=sync"],
    "delay": ["pipeline=pipedream_2bw"],
    "delay_ef": ["pipeline=pipedream_2bw", "correction=error_feedback"],
}
LEARNING_RATES = 100
ROWS = b'{"update": 0, "train_loss": 1.0}\n' * 1_800
PAGE = 1_000


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


class SimulatedBucket(BucketClient):
    """A bucket in memory that counts its requests, each of which takes `latency` seconds."""

    def __init__(self, url: str, latency: float) -> None:
        super().__init__(url)
        self._latency, self._lock, self.num_requests = latency, threading.Lock(), 0
        self.__dict__["_small"] = self.__dict__["_large"] = MemoryStore()

    def list(self, prefix: str) -> Sequence[Meta]:
        """Return the objects below `prefix`, after the time of one request per page."""
        listed = super().list(prefix)
        for _ in range(ceil(len(listed) / PAGE) - 1):
            self._wait()
        return listed

    @contextmanager
    def _request(self, absent: Exception | None = None) -> Iterator[Any]:
        self._wait()
        with super()._request(absent) as library:
            yield library

    def _wait(self) -> None:
        with self._lock:
            self.num_requests += 1
        time.sleep(self._latency)

    def fill(self, store: Path) -> Sequence[str]:
        """Puts the trials of a store of files into the bucket at once; returns their ids."""
        self._latency, latency = 0.0, self._latency
        ids = sorted(folder.name for folder in (store / "trials").iterdir())
        for trial_id in ids:
            self.upload(f"trials/{trial_id}/000001/000001/metrics.jsonl", ROWS)
            folder = store / "trials" / trial_id
            files: dict[str, Any] = {
                path.name: {"text": path.read_text()} for path in folder.iterdir()
            }
            files["attempt-000001.json"] = {"text": '{"attempt": 1, "ended": "completed"}'}
            key = f"trials/{trial_id}/000001/000001/metrics.jsonl"
            files["metrics.jsonl"] = {"key": key, "size": len(ROWS)}
            made = Register(trial_id, attempt=1, files=files)
            self.create(register.key(trial_id), made.json())
        self._latency = latency
        return ids

    def change(self, trial_id: str) -> None:
        """Replaces the register of a trial by a newer one."""
        seen = register.see(self, trial_id)
        assert seen is not None
        new = replace(seen.register, beat=1)
        self.replace(register.key(trial_id), new.json(), seen.version)


def timed_load(name: str, store: Path, pull: Callable[[], None] = lambda: None) -> None:
    """Prints the seconds of one way to load, after `pull`."""
    started, busy = time.monotonic(), time.process_time()
    pull()
    table = load(store)
    seconds, busy = time.monotonic() - started, time.process_time() - busy
    print(
        f"{seconds:6.1f} s, {busy:5.1f} s of CPU  {name}: {table.shape} rows and columns",
        flush=True,
    )


def from_files(store: Path, num_trials: int) -> None:
    """Prints one line per way to load."""
    make_store(store, num_trials)
    for name in ("from the files, index written", "from the index", "from the index, again"):
        timed_load(name, store)
    size = (store / ".index" / "trials.parquet").stat().st_size
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"index {size / 1e6:.1f} MB, peak memory of the process {memory / 1e9:.2f} GB")


def from_bucket(folder: Path, num_trials: int, latency: float) -> None:
    """Prints one line per pull, with its requests."""
    os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
    make_store(folder, num_trials)
    bucket = SimulatedBucket("s3://bucket/bench", latency)
    ids = bucket.fill(folder)
    mirror = Mirror(bucket)
    for name in ("all of it", "nothing new", "100 trials changed"):
        if name == "100 trials changed":
            for trial_id in ids[:100]:
                bucket.change(trial_id)
        bucket.num_requests = 0
        timed_load(name, mirror.path, mirror.pull)
        print(f"{bucket.num_requests:,} requests", flush=True)


def main(words: list[str]) -> None:
    """Loads from files or from a bucket."""
    given = dict(word.split("=") for word in words)
    with tempfile.TemporaryDirectory(prefix="pipegap-bench-") as folder:
        if given.get("bucket") == "true":
            num_trials, latency = int(given.get("trials", 10_000)), given.get("latency", "0.02")
            from_bucket(Path(folder), num_trials, float(latency))
        else:
            from_files(Path(folder), int(given.get("trials", 100_000)))


if __name__ == "__main__":
    main(sys.argv[1:])
