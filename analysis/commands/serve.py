"""Serves the report of a results folder to browsers on this machine, and follows the store."""

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from analysis.commands.words import count
from analysis.objects.bucket import StoreAway
from analysis.objects.mirror import pulled
from trainer.base.cli import Given
from trainer.base.errors import BadInput

KEYS = {
    "results": "the store (default: results)",
    "port": "of the loopback address; 0: any that is free (default: 8000)",
}
PORT, HIGHEST = 8_000, 65_535


def main(given: Given) -> None:
    """Until Ctrl-C, which leaves nothing behind; raises BadInput."""
    results, port = given.get("results", "results"), count(given, "port", PORT, HIGHEST, low=0)
    store = pulled(results)
    if not store.exists():
        raise BadInput("results", results, "must be a folder that holds trials (no such folder)")
    from analysis.report.live import LOOK_EVERY, LiveReport, PageServer

    with _stopped_by_signals(), tempfile.TemporaryDirectory(prefix="pipegap-report-") as folder:
        report = LiveReport(store, Path(folder), results)
        server = PageServer(report, port)
        print(report.look(), flush=True)
        with server.serving():
            print(f"{server.address} follows {results}; Ctrl-C ends", flush=True)
            while True:
                time.sleep(LOOK_EVERY)
                with suppress(StoreAway):  # for a moment: what was seen last is shown
                    pulled(results)
                if made := report.look():
                    print(made, flush=True)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Ctrl-C, SIGTERM and a lost terminal end the context, and nothing else."""
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        return
