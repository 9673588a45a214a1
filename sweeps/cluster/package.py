"""What a job sends to a cluster: the code and a few environment variables, never a key."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import Any

from sweeps.cluster.own import OWN_CODE, OWN_FILES, Own
from trainer.base.places import CODE_ROOT, CONF
from trainer.config.version import COMMIT, code_version

CODE = sorted({"analysis", "sweeps", "trainer", CONF.relative_to(CODE_ROOT).parts[0]})
"""The folders that a job needs. Everything else that lies beside them stays here."""
SENT_FOLDERS = (*CODE, OWN_CODE, OWN_FILES)
EXCLUDES = ["/*", "!/.", *(f"!/{folder}" for folder in SENT_FOLDERS), "__pycache__"]
"""The same for Ray, as the lines of a .gitignore: the last pattern that matches decides."""

SENT = (".py", ".yaml")
"""Ends of the names of files of the user's code that are sent."""

PASSED_ON = ("WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT")
"""Environment variables that a job gets from here. Everyone who reaches the cluster can read them:
keys (WANDB_API_KEY, RAY_AUTH_TOKEN) belong in the environment in which its nodes start Ray."""

STOP_WAIT = 60
"""Seconds that a job has to end when it is stopped, before Ray kills it (its default is 3): its
trials have `sweeps.cluster.stop.GRACE` of them to save a checkpoint. No report is drawn then."""


def runtime_env(root: Path = CODE_ROOT) -> dict[str, Any]:
    """The environment of a job, as Ray's Jobs API takes it; `root` holds the folders to send."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    variables = {COMMIT: code_version() or "", "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT)}
    return {
        "working_dir": str(root),
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


@contextmanager
def sent_with(own: Own) -> Iterator[Path]:
    """Yields a folder with what a job needs: the checkout, or a copy of it beside the user's own
    code and files."""
    if own == Own():
        yield CODE_ROOT
        return
    with TemporaryDirectory(prefix="pipegap-job-") as made:
        for folder in CODE:
            copytree(CODE_ROOT / folder, Path(made, folder), ignore=ignore_patterns("__pycache__"))
        if own.code is not None:
            copytree(own.code, Path(made, OWN_CODE), ignore=_not_sent)
        for name, path in own.files.items():
            Path(made, name).parent.mkdir(parents=True, exist_ok=True)
            copyfile(path, Path(made, name))
        yield Path(made)


def _not_sent(folder: str, names: list[str]) -> list[str]:
    """Of the `names` in a folder of the user's: other files, and hidden folders."""
    files = [name for name in names if Path(folder, name).is_file() and not name.endswith(SENT)]
    return [*files, *(name for name in names if name.startswith((".", "__pycache__")))]
