"""A small sweep whose store is a bucket, for bench.kills."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.kills import NETWORK, Sweep
from tests.support.s3_server import BUCKET, Bucket, credentials
from trainer.folder.lease import STALE_AFTER

CUT = STALE_AFTER + 20
"""Seconds without a network: a lease ends meanwhile."""


@dataclass
class BucketSweep(Sweep):
    """Its machine's copy of the store, and the folders of its trials, lie in its own folder."""

    bucket: Bucket = field(default_factory=Bucket)
    port: int = 0
    _rows: dict[str, int] = field(default_factory=dict)
    """Trial → the most rows that it was seen to have in a folder of a running trial."""

    @property
    def where(self) -> str:
        """Its URL."""
        return f"s3://{BUCKET}/{self.mark}"

    @property
    def environment(self) -> Mapping[str, str]:
        """Where it finds the server, and its folder."""
        return {**credentials(self.port), "XDG_CACHE_HOME": str(self.folder)}

    @property
    def _place(self) -> Path:
        return next(self.folder.glob("pipegap/stores/*"), self.folder)

    @property
    def results(self) -> Path:
        """The copy."""
        return self._place / "copy"

    def has_begun(self) -> bool:
        """Whether one of its trials runs or ran."""
        return bool(self._rows) or any(self._place.glob("work/trial-*/attempt-*.json"))

    def num_updates(self) -> int:
        """In the folders of the trials that run, and of those that were seen to."""
        for folder in [*self._place.glob("work/trial-*"), *self.results.glob("trials/*")]:
            with suppress(OSError):
                trial_id = (folder / "trial_id").read_text()
                num_rows = (folder / "metrics.jsonl").read_bytes().count(b"\n")
                self._rows[trial_id] = max(num_rows, self._rows.get(trial_id, 0))
        return sum(self._rows.values())

    def hit(self, target: str, how: signal.Signals) -> bool:
        """Also `network`: no connection to the server holds for CUT seconds."""
        if target != NETWORK:
            return super().hit(target, how)
        self.bucket.fault = lambda method, key: "cut"
        threading.Timer(CUT, self._mend).start()
        return True

    def _mend(self) -> None:
        self.bucket.fault = lambda method, key: None

    def left_over(self) -> Sequence[str]:
        """Objects of trials that no register names."""
        own = {key.removeprefix(f"{self.mark}/") for key in self.bucket.objects if self.mark in key}
        named = set()
        for key in own:
            if key.startswith("registers/"):
                content = self.bucket.objects[f"{self.mark}/{key}"].content
                named |= {file.get("key") for file in json.loads(content)["files"].values()}
        return sorted(key for key in own - named if key.startswith("trials/"))
