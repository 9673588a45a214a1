"""What a job takes to a cluster: the code, and a few variables of the environment, never a key."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from trainer.compose import CONF
from trainer.identity import COMMIT, git_commit

REPOSITORY = CONF.parent
CODE = ("analysis", "conf", "sweeps", "trainer")
"""The folders that a job needs: all else that lies in the repository stays here."""
EXCLUDES = ["/*", "!/.", *(f"!/{folder}" for folder in CODE), "__pycache__"]
"""The same as Ray reads it, line for line like a .gitignore: the last one that fits decides."""

PASSED_ON = ("WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT")
"""Variables that a job gets from here. Whoever reaches the cluster can read a job's variables: keys
(WANDB_API_KEY, RAY_AUTH_TOKEN) belong into the environment in which its nodes start Ray."""

STOP_WAIT = 60
"""Seconds that a job has to end when it is stopped, before Ray kills it (its default is 3): its
trials have `sweeps.stop.GRACE` of them to save a checkpoint, then it reports what there is."""


def runtime_env() -> dict[str, Any]:
    """The environment of a job, as Ray's Jobs API takes it."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    variables = {COMMIT: git_commit() or "", "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT)}
    return {
        "working_dir": str(REPOSITORY),
        "excludes": EXCLUDES,
        "env_vars": {**passed_on, **variables},
    }


def code_digest(repository: Path = REPOSITORY) -> str:
    """A hash of the names and contents of all files that a job takes along."""
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((repository / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(repository)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
