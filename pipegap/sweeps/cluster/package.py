"""What a job sends to a cluster: the code, the user's own code and files, never a key.

Keys belong in the environment of the nodes. The store and the data must lie on storage that all
nodes share, under the same paths.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from pipegap.sweeps.request.command_line import Request
from pipegap.sweeps.request.files import is_path
from pipegap.sweeps.request.schema import Sweep, keys
from pipegap.trainer.base.cli import split_word
from pipegap.trainer.base.code import code_digest as folder_digest
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CODE_ROOT, CONF, PACKAGE
from pipegap.trainer.config.identity import COMMIT, code_version

CODE_KEY = "code"
"""The word that names a folder of the user's own code."""
OWN_CODE, OWN_FILES = "own_code", "own_files"
"""What that folder, and the one with the files, are called in a job."""
OF_FILES = ("sweep", "search")
"""Words whose values may be files."""
SENT_FOLDERS = (PACKAGE.name, OWN_CODE, OWN_FILES)
"""The folders that a job needs. Everything else that lies beside them stays here."""
EXCLUDES = ["/*", "!/.", *(f"!/{folder}" for folder in SENT_FOLDERS), "__pycache__"]
"""The same for Ray, as the lines of a .gitignore: the last pattern that matches decides."""

SENT = (".py", ".yaml")
"""Ends of the names of files of the user's code that are sent."""

PASSED_ON = ("WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT")
"""Environment variables that a job gets from here. Everyone who reaches the cluster can read them:
keys (WANDB_API_KEY, RAY_AUTH_TOKEN) belong in the environment in which its nodes start Ray."""

STOP_WAIT = 60
"""Seconds that a job has to end when it is stopped, before Ray kills it (its default is 3): its
trials have `tune_hooks.GRACE` of them to save a checkpoint. No report is drawn then."""
PATHS = ("data.path", "data.shards", "resume_from")
"""Keys of a trial that name files outside its folder."""
SHARED = "must be given as an absolute path, on storage that all nodes share"


@dataclass(frozen=True)
class Own:
    """A folder of code, and files by their paths in the job."""

    code: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def digests(self) -> list[str]:
        """Hashes of all that is sent; empty if nothing is."""
        folders = [] if self.code is None else [folder_digest(self.code)]
        contents = (f"{name}\0".encode() + path.read_bytes() for name, path in self.files.items())
        return [*folders, *(hashlib.sha256(content).hexdigest() for content in contents)]


def take_along(values: Mapping[str, str], request: Request) -> tuple[list[str], Own]:
    """Return the words of a job that asks for what `values` does, and what it needs of the user's.

    The folder of code is that of the words, or else of the sweep files. Raises BadInput if these
    name several, or one elsewhere than in `base`, which a word of the command line replaces.
    """
    code = values.get(CODE_KEY) or _code_of(request.sweeps.values())
    words, files = dict(values), dict[str, Path]()
    for key in OF_FILES:
        names = values.get(key, "").split(",")
        sent = {name: f"{OWN_FILES}/{key}/{Path(name).name}" for name in names if is_path(name)}
        files |= {target: Path(name) for name, target in sent.items()}
        if sent:
            words[key] = ",".join(sent.get(name, name) for name in names)
    if code is not None:
        words[CODE_KEY] = OWN_CODE
    return [f"{key}={value}" for key, value in words.items()], Own(code, files)


def _code_of(sweeps: Iterable[Sweep]) -> str | None:
    """Return the folder that the sweeps name; None if they name none."""
    folders = set()
    for sweep in sweeps:
        if CODE_KEY in keys(sweep.words[len(sweep.base) :]):
            raise BadInput(CODE_KEY, "", "must be in base, or on the command line, to be sent")
        folders |= {value for key, value in map(split_word, sweep.base) if key == CODE_KEY}
    if len(folders) > 1:
        raise BadInput(CODE_KEY, ", ".join(sorted(folders)), "must be one folder, which is sent")
    return next(iter(folders), None)


def runtime_env(root: Path = CODE_ROOT) -> dict[str, Any]:
    """Return the environment of a job for Ray's Jobs API; `root` holds the folders to send."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    variables = {COMMIT: code_version() or "", "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT)}
    return {"working_dir": str(root), "excludes": EXCLUDES, "env_vars": {**passed_on, **variables}}


def code_digest(root: Path = CODE_ROOT) -> str:
    """Return a hash of the names and contents of all files below `root` that a job sends."""
    digest = hashlib.sha256()
    walked = os.walk(root / PACKAGE.name)
    for path in sorted(Path(folder, name) for folder, _, names in walked for name in names):
        if "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@contextmanager
def sent_with(user_files: Own) -> Iterator[Path]:
    """Yield a folder with what a job needs: the checkout, or a copy beside the user's own files."""
    if user_files == Own():
        yield CODE_ROOT
        return
    with TemporaryDirectory(prefix="pipegap-job-") as folder:
        copytree(PACKAGE, Path(folder, PACKAGE.name), ignore=ignore_patterns("__pycache__"))
        if user_files.code is not None:
            copytree(user_files.code, Path(folder, OWN_CODE), ignore=_not_sent)
        for name, path in user_files.files.items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            copyfile(path, Path(folder, name))
        yield Path(folder)


def _not_sent(folder: str, names: list[str]) -> list[str]:
    """Return what copytree leaves out of the user's folder: other files, and hidden folders."""
    files = [name for name in names if Path(folder, name).is_file() and not name.endswith(SENT)]
    return [*files, *(name for name in names if name.startswith((".", "__pycache__")))]


def require_shared(request: Request) -> None:
    """Raise BadInput for a relative path: a job runs in a copy of the code, on another machine."""
    pairs = (word.partition("=") for sweep in request.sweeps.values() for word in sweep.words)
    words = [(key, value) for key, _, value in pairs]
    for key, path in [("results", str(request.results)), *words]:
        if key in ("results", *PATHS) and not os.path.isabs(path):
            raise BadInput(key, path, SHARED)
    values = dict(words)
    keys_of_data = _keys_of_data(values.get("data", ""), values.get(CODE_KEY, ""))
    for key in PATHS:
        if key in keys_of_data and key not in values:
            raise BadInput(key, "", SHARED)


def _keys_of_data(choice: str, code: str) -> set[str]:
    """Return the keys of a choice of data, of conf/ or of the user's code; of another one those
    that data has that was prepared."""
    for folder in (CONF, Path(code)):
        path = folder / "data" / f"{choice}.yaml"
        if choice and path.is_file():
            return {f"data.{key}" for key in yaml.safe_load(path.read_text("utf-8"))}
    return {"data.path"}
