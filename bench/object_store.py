"""How long a store of many trials in an object store takes to become a table, and its requests.

    python -m bench.object_store [trials=10000] [latency=0.02]

The store is in this process's memory; each request takes `latency` seconds more, which is
simulated. A listing takes one request per 1,000 objects. As many configs and results as in
bench.load, with rows of 60 KB for each trial.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore

from analysis import load
from analysis.objects import register
from analysis.objects.bucket import BucketClient, Meta
from analysis.objects.mirror import Mirror
from analysis.objects.register import Register
from bench.load import make_store

ROWS = b'{"update": 0, "train_loss": 1.0}\n' * 1_800
PAGE = 1_000


class Simulated(BucketClient):
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
        """Swaps the register of a trial."""
        found = self.read(register.key(trial_id))
        new = replace(register.read(found.content), beat=1)
        self.replace(register.key(trial_id), new.json(), found.version)


def main(words: list[str]) -> None:
    """Prints one line per pull."""
    given = {"trials": "10000", "latency": "0.02"} | dict(word.split("=") for word in words)
    with tempfile.TemporaryDirectory(prefix="pipegap-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        make_store(Path(folder), int(given["trials"]))
        bucket = Simulated("s3://bucket/bench", float(given["latency"]))
        ids = bucket.fill(Path(folder))
        mirror = Mirror(bucket)

        def pull(name: str) -> None:
            bucket.num_requests, started, busy = 0, time.monotonic(), time.process_time()
            mirror.pull()
            table = load(mirror.path)
            seconds, busy = time.monotonic() - started, time.process_time() - busy
            print(
                f"{seconds:6.1f} s, {busy:5.1f} s of CPU, {bucket.num_requests:,} requests  "
                f"{name}: {table.shape} rows and columns",
                flush=True,
            )

        pull("all of it")
        pull("nothing new")
        for trial_id in ids[:100]:
            bucket.change(trial_id)
        pull("100 trials changed")


if __name__ == "__main__":
    main(sys.argv[1:])
