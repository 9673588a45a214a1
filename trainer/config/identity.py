"""What makes a trial: its id is a hash of everything that may change a number, and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from subprocess import CalledProcessError, run
from typing import Any

TRAINER_VERSION = 2
"""Raised by hand when a fix changes numbers: results of different versions are never mixed."""

COMMIT = "PIPEGAP_COMMIT"
"""The variable that tells the commit where the source tree is a copy without git."""

CHANGES_NO_NUMBER = (
    "results",
    "out",
    "save_final",
    "checkpoint_every",
    "timeout",
    "trace",
    "data.path",
)
"""Keys left out of the id. The data counts by its hash, not by where it lies."""


def trial_id(config: Mapping[str, Any], data_hash: str | None) -> str:
    """16 hexadecimal digits of the resolved config, the data and the trainer's version."""
    kept = json.loads(json.dumps(config))
    for key in CHANGES_NO_NUMBER:
        *path, last = key.split(".")
        node = kept
        for part in path:
            node = node[part]
        node.pop(last, None)
    if kept.get("diagnostics") is None:  # so that trials older than the key keep their ids
        kept.pop("diagnostics", None)
    if kept["resume_from"]:
        kept["resume_from"] = Path(kept["resume_from"]).name  # which has the checkpoint's digest
    made_by = {"config": kept, "data_hash": data_hash, "trainer_version": TRAINER_VERSION}
    canonical = json.dumps(made_by, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def git_commit() -> str | None:
    """Commit of this source tree, with `-dirty` where it was changed; None where nobody knows."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = run(describe, cwd=Path(__file__).parent, check=True, capture_output=True, text=True)
    except (CalledProcessError, FileNotFoundError):
        return os.environ.get(COMMIT) or None
    return done.stdout.strip()


def provenance(trial_id: str, data_hash: str | None, device_name: str) -> dict[str, Any]:
    """What made a result: ids, library versions, commit, and the kind of device."""
    packages = ("torch", "numpy", "pytorch_optimizer")
    return {
        "trial_id": trial_id,
        "data_hash": data_hash,
        "trainer_version": TRAINER_VERSION,
        "git": git_commit(),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in packages},
        "device_name": device_name,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
