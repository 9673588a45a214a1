"""Trackers that misbehave, for the tests."""

import json
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipegap.sweeps.tracking import tracker
from pipegap.sweeps.tracking.tracker import About, Background, Tracking
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.folder.wellformed import Row
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep, trials

NEVER = threading.Event()


class Hangs:
    """Sleeps for ever in one of its methods."""

    def __init__(self, about: About, *, where: str) -> None:
        self._where = where
        self._reach("start")

    def _reach(self, here: str) -> None:
        if here == self._where:
            NEVER.wait()

    def log(self, row: Row) -> None:
        self._reach("log")

    def finish(self, outcome: Row) -> None:
        self._reach("finish")


class Raises(Hangs):
    """Raises there instead."""

    def _reach(self, here: str) -> None:
        if here == self._where:
            raise SystemExit(f"no\n{here}")


# Trials that are tracked, and what they wrote.

PATIENT = 120.0


def chosen(*words: str) -> Tracking:
    """The tracker of these words of a command line, given time enough on a busy machine."""
    given = {"tracking.wait": str(PATIENT), **dict(word.split("=", 1) for word in words)}
    found = tracker.take(given)
    assert not given
    return found


def tracked(
    config: dict[str, Any],
    tracking: Tracking,
    stop_after: float = math.inf,
    sweeps: Sequence[str] = ("main-micro",),
    arm: str = "sync",
    setting: str = "clip_norm=1",
) -> Background:
    """Runs a trial of `sweeps` as a worker does, or up to an update."""
    trial_id = plan_trial(config).trial_id
    tracker = tracking.of(trial_id, arm, config, setting=setting, sweeps=sweeps)
    num_rows = 0

    def report(row: Row) -> None:
        nonlocal num_rows
        num_rows += 1
        tracker.log(row)

    with tracker:
        tracker.outcome = run_trial(config, report, lambda: num_rows >= stop_after)
    return tracker


def folder(config: dict[str, Any]) -> Path:
    return Path(config["results"]) / "trials" / plan_trial(config).trial_id


def rows(config: dict[str, Any]) -> list[Row]:
    return [
        json.loads(line) for line in (folder(config) / "metrics.jsonl").read_text().splitlines()
    ]


def untimed(config: dict[str, Any]) -> list[Row]:
    return trials.rows(folder(config))


def runs(config: dict[str, Any]) -> list[Path]:
    return sorted(Path(config["results"]).glob("tracking/wandb/*run-*"))


@cache
def plain() -> list[Row]:
    """Rows of the trial without a tracker, times aside."""
    with TemporaryDirectory() as scratch:
        config = small_sweep.config(Path(scratch))
        run_trial(config)
        return untimed(config)


# A webhook of a chat, on this machine.

SECRET = "T0ken-of-a-webhook"


@dataclass
class Webhook:
    """What was posted to its `url`. It answers with `status`, and takes nothing but with 200."""

    url: str = ""
    status: int = 200
    posts: list[dict[str, Any]] = field(default_factory=list)
    logins: set[str | None] = field(default_factory=set)

    def kinds(self) -> list[str]:
        return [post["kind"] for post in self.posts]


@contextmanager
def served() -> Iterator[Webhook]:
    made = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if made.status == 200:
                made.posts.append(body)
            made.logins.add(self.headers["Authorization"])
            self.send_response(made.status)
            self.send_header("Location", "/")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        made.url = f"http://127.0.0.1:{http.server_port}/services/{SECRET}"
        yield made
        http.shutdown()
