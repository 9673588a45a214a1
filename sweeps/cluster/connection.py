"""The Ray cluster of a driver: the one of RAY_ADDRESS, or one of its own on this machine."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
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

OF_TRIALS = "sweeps.cluster.driver"
"""The module that a worker needs for a trial, with all that it imports."""


def temporary_base() -> Path:
    """Where Ray's and Tune's files of this driver may lie."""
    base = Path(os.environ.get("RAY_TMPDIR") or gettempdir())
    return base if len(str(base)) <= LONGEST_BASE else Path("/tmp")  # the folder's name is random


@contextmanager
def cluster(num_trials: int = 0) -> Iterator[Path]:
    """Connects to the cluster of RAY_ADDRESS, or starts one here that listens on loopback only.

    Without RAY_ADDRESS it is one of this driver's own, whatever other clusters this machine has.
    Its workers get ready for so many trials while the driver does. Yields the driver's temporary
    folder. Raises Unavailable if Ray does not start or answer.
    """
    with scratch(temporary_base(), "pipegap-ray-") as folder:
        address = os.environ.get("RAY_ADDRESS") or "local"
        try:
            if address == "local":
                _start_own(folder, num_trials)
            else:
                _join(address)
        except Exception as error:  # Ray raises ConnectionError, RuntimeError, Exception itself
            why = " ".join(str(error).split()) or type(error).__name__
            raise Unavailable(f"Ray does not start or answer ({address}): {why}") from error
        try:
            yield folder
        finally:
            ray.shutdown()


def _start_own(folder: Path, num_trials: int) -> None:
    """Ray starts a worker per core at once. They take trials only if these ask for no environment
    other than theirs: so theirs is this process's, which has the variables for as long as Ray
    starts."""
    with _variables(ENVIRONMENT):
        _init("local", _temp_dir=str(folder), include_dashboard=False)
    get_ready: Any = ray.remote(_import)
    for _ in range(min(num_trials, int(ray.cluster_resources().get("CPU", 0)))):
        get_ready.remote(OF_TRIALS)


def _import(module: str) -> None:
    import_module(module)


def _join(address: str) -> None:
    _require_listening(address)
    _init(address, runtime_env={"env_vars": ENVIRONMENT})


def _init(address: str, **options: Any) -> None:
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)


@contextmanager
def _variables(added: Mapping[str, str]) -> Iterator[None]:
    """Of this process, until the end."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _require_listening(address: str) -> None:
    """Raises OSError if nobody listens at HOST:PORT: Ray tries for minutes, and prints that."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_WITHIN):
            pass
