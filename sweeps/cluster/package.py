"""What a job sends to a cluster: the code and a few environment variables, never a key."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from trainer.base.places import CODE_ROOT, CONF
from trainer.config.version import COMMIT, code_version

CODE = sorted({"analysis", "sweeps", "trainer", CONF.relative_to(CODE_ROOT).parts[0]})
"""The folders that a job needs. Everything else that lies beside them stays here."""
EXCLUDES = ["/*", "!/.", *(f"!/{folder}" for folder in CODE), "__pycache__"]
"""The same for Ray, as the lines of a .gitignore: the last pattern that matches decides."""

PASSED_ON = ("WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT")
"""Environment variables that a job gets from here. Everyone who reaches the cluster can read them:
keys (WANDB_API_KEY, RAY_AUTH_TOKEN) belong in the environment in which its nodes start Ray."""

STOP_WAIT = 60
"""Seconds that a job has to end when it is stopped, before Ray kills it (its default is 3): its
trials have `sweeps.cluster.stop.GRACE` of them to save a checkpoint. No report is drawn then."""


def runtime_env() -> dict[str, Any]:
    """The environment of a job, as Ray's Jobs API takes it."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    variables = {COMMIT: code_version() or "", "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT)}
    return {
        "working_dir": str(CODE_ROOT),
        "excludes": EXCLUDES,
        "env_vars": {**passed_on, **variables},
    }


def code_digest(root: Path = CODE_ROOT) -> str:
    """A hash of the names and contents of all files below `root` that a job sends."""
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(root)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
