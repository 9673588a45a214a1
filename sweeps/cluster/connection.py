"""The Ray cluster of a driver: the one of RAY_ADDRESS, or one of its own on this machine."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import ray

from trainer.base.errors import Unavailable
from trainer.base.scratch import scratch

CONNECT_WITHIN = 20.0
"""Seconds that the cluster of RAY_ADDRESS has to accept a connection."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
"""Variables of the workers. A worker runs each of its trials in a new thread, for which glibc would
open a new arena, and so keep the memory of the trials before."""

LONGEST_BASE = 22
"""Letters of the folder above a driver's own: Ray's sockets lie inside, and Linux allows 107 for
their paths."""


def temporary_base() -> Path:
    """Where Ray's and Tune's files of this driver may lie."""
    base = Path(os.environ.get("RAY_TMPDIR") or gettempdir())
    return base if len(str(base)) <= LONGEST_BASE else Path("/tmp")  # the folder's name is random


@contextmanager
def cluster() -> Iterator[Path]:
    """Connects to the cluster of RAY_ADDRESS, or starts one here that listens on loopback only.

    Without RAY_ADDRESS it is one of this driver's own, whatever other clusters this machine has.
    Yields the driver's temporary folder. Raises Unavailable if Ray does not start or answer.
    """
    with scratch(temporary_base(), "pipegap-ray-") as folder:
        address = os.environ.get("RAY_ADDRESS") or "local"
        of_own: dict[str, Any] = {"_temp_dir": str(folder), "include_dashboard": False}
        try:
            _require_listening(address)
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": ENVIRONMENT},
                **(of_own if address == "local" else {}),
            )
        except Exception as error:  # Ray raises ConnectionError, RuntimeError, Exception itself
            why = " ".join(str(error).split()) or type(error).__name__
            raise Unavailable(f"Ray does not start or answer ({address}): {why}") from error
        try:
            yield folder
        finally:
            ray.shutdown()


def _require_listening(address: str) -> None:
    """Raises OSError if nobody listens at HOST:PORT: Ray tries for minutes, and prints that."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_WITHIN):
            pass
