"""What makes a trial: its id, a hash of all that may change a number, and the code that runs.

An id names values, not words: the resolved keys of the config, the hash of the data and the
trainer's version. The names that people chose (`model=tiny`) are left out: two names for the same
values are one trial, and an edited YAML makes another trial. A choice counts by the address under
which its class was first published (`trainer.base.build.MOVED`), wherever the class lives now;
`trainer.config.schema.validate` writes that address. A class from outside this package counts by
its address and by two source files: of the module in the address and of the module that defines the
class. Modules that these import, and code without a source file (built in, compiled), do not count.
A class from the folder `code` counts by all Python files of that folder.
"""

import hashlib
import inspect
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import distributions, version
from pathlib import Path
from subprocess import CalledProcessError, run
from typing import Any

from pipegap.trainer.base.build import build, is_own, locate, published
from pipegap.trainer.base.code import code_digest, is_in, use_code
from pipegap.trainer.base.places import CODE_ROOT
from pipegap.trainer.base.ranges import MAX_COUNT
from pipegap.trainer.config.names import WORDS, is_choice, is_of_loop, own_words, without_younger
from pipegap.trainer.models.checkpoint_files import weights_digest

TRAINER_VERSION = 2
"""Raised by hand when a fix changes numbers: results of different versions are never mixed."""

COMPILED_FIXES = 2
"""Raised by hand when a fix changes the numbers of `compile=update` alone."""

HEAD_FIXES = 1
"""Raised by hand when a fix changes the numbers of models alone whose head is not the embedding."""

TIED_CLIP_FIXES = 1
"""Raised by hand when a fix changes the numbers alone of trials whose stages clip by themselves and
hold copies of one weight."""

OWN_DATA = "trainer.data."
"""How the published address of a data's class begins that lies in this package."""

CHANGES_NO_NUMBER = (
    *("choices", "results", "out", "data.path", "data.skip_bad_rows", "code"),
    *("save_final", "save_last", "checkpoint_every", "timeout", "trace"),
)
"""Keys left out of the id. The data counts by its hash, not by where it lies."""

COMMIT = "PIPEGAP_COMMIT"
"""Environment variable that names the commit of a source tree that is a copy without git."""


def version_of(config: Mapping[str, Any]) -> int:
    """Return the version of the trainer that the numbers of a trial belong to."""
    if is_of_loop(config):
        return TRAINER_VERSION
    is_compiled, model = config["compile"] == "update", config["model"]
    default = getattr(locate(model["_target_"]), "tied_embeddings", True)
    has_head = model.get("tied_embeddings", default) is False
    clips_copies = not has_head and _clips_by_stage(config)
    fixes = COMPILED_FIXES * is_compiled + HEAD_FIXES * has_head + TIED_CLIP_FIXES * clips_copies
    return TRAINER_VERSION + fixes


def _clips_by_stage(config: Mapping[str, Any]) -> bool:
    """Whether a clip acts on several stages, on each by itself."""
    if config["clip_norm"] is None or config["clip_scope"] != "stage":
        return False
    return build(config["pipeline"], config["num_updates"] or MAX_COUNT).num_stages > 1


def trial_id(config: Mapping[str, Any], data_hash: str | None) -> str:
    """Return 16 hexadecimal digits, a hash of resolved config, data and trainer's version."""
    hashed_config = _of_loop(config) if is_of_loop(config) else _of_trial(config)
    made_by = {
        "config": hashed_config,
        "data_hash": data_hash,
        "trainer_version": version_of(config),
    }
    if foreign := sources(config):
        made_by["sources"] = foreign
    canonical = json.dumps(made_by, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _of_loop(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the id of a recorded loop hashes: every word, since none changes no number.

    The words of the loop's own count beside the keys, where 0.2 wrote them.
    """
    left_out = ("choices", "results", "out", WORDS)
    hashed_config = {
        key: value for key, value in config.items() if key not in left_out
    } | own_words(config)
    hashed_config["data"] = {
        key: value for key, value in hashed_config["data"].items() if key != "path"
    }
    return hashed_config


def _of_trial(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the id of a trial hashes: what may change a number."""
    hashed_config: dict[str, Any] = json.loads(json.dumps(without_younger(config)))
    for key in CHANGES_NO_NUMBER:
        *path, last = key.split(".")
        node = hashed_config
        for part in path:
            node = node[part]
        node.pop(last, None)
    if published(hashed_config["data"]["_target_"]).startswith(OWN_DATA):
        # The hash of the data stands for them.
        for key in getattr(locate(hashed_config["data"]["_target_"]), "COUNTED_BY_HASH", ()):
            hashed_config["data"].pop(key, None)
    if hashed_config["resume_from"]:
        # The name of a checkpoint, with its digest, without the attempt that wrote it.
        name = Path(hashed_config["resume_from"]).name
        hashed_config["resume_from"] = re.sub(r"^(checkpoint-\d+)-\d+(?=-)", r"\1", name)
    if hashed_config.get("from_pretrained"):
        hashed_config["from_pretrained"] = weights_digest(hashed_config["from_pretrained"])
    return hashed_config


def sources(config: Mapping[str, Any]) -> dict[str, str]:
    """Group → SHA-256 of the source of its class (16 digits), for classes from outside the package.

    A process reads a source file once, about when it imports the file.
    """
    addresses = {key: node["_target_"] for key, node in config.items() if is_choice(node)}
    code = config.get("code")
    return {
        group: digest
        for group, address in addresses.items()
        if not is_own(address) and (digest := _source_digest(address, code))
    }


@cache
def _source_digest(address: str, code: str | None) -> str | None:
    """SHA-256 (16 digits) of the modules that name and define the target; None without source.

    The two modules may be one. Modules of this package do not count. The digest of a module in the
    folder `code` is that of all the folder's Python files.
    """
    use_code(code)
    target, modules = locate(address), {address.rpartition(".")[0]}
    module = sys.modules[address.rpartition(".")[0]]
    if is_in(code, getattr(module, "__file__", None)):
        return code_digest(str(code))
    if inspect.isclass(target) or inspect.isfunction(target):
        modules.add(target.__module__)
    contents = {_content(module) for module in modules if not is_own(module)}
    digests = sorted(hashlib.sha256(content).hexdigest() for content in contents if content)
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16] if digests else None


def _content(module: str) -> bytes:
    """Return the content of a module's source file; empty without one."""
    try:
        path = inspect.getsourcefile(import_module(module))
    except TypeError:  # built in
        return b""
    return Path(path).read_bytes() if path is not None else b""


def provenance(
    config: Mapping[str, Any], trial_id: str, data_hash: str | None, device_name: str
) -> dict[str, Any]:
    """What made a result: ids, sources, versions of libraries and code, and the kind of device."""
    return {
        "trial_id": trial_id,
        "data_hash": data_hash,
        "trainer_version": version_of(config),
        "sources": sources(config),
        **made_by(device_name),
    }


def made_by(device_name: str) -> dict[str, Any]:
    """Return code, versions of Python and libraries, and the kind of device.

    Results, attempts and checkpoints record them.
    """
    return {"git": _code(), "versions": {**_versions()}, "device_name": device_name}


@cache
def _versions() -> Mapping[str, str]:
    packages = ("torch", "numpy", "pytorch_optimizer")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def code_version() -> str | None:
    """Return a name for the source code that runs; None if there is none.

    In a git repository: its commit, with `-dirty` if the tree was changed. In a copy without git:
    the value of `PIPEGAP_COMMIT`. Installed from a wheel: e.g. "pipegap 0.1.0".
    """
    return _commit() or os.environ.get(COMMIT) or _release()


def _commit() -> str | None:
    """Return the commit of the repository that tracks this file; None without such a repository.

    An installed copy may lie inside a repository that does not track the copy.
    """
    source_file = Path(__file__)
    tracks = ["git", "ls-files", "--error-unmatch", source_file.name]
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        run(tracks, cwd=source_file.parent, check=True, capture_output=True)
        done = run(
            describe, cwd=source_file.parent, check=True, capture_output=True, encoding="utf-8"
        )
    except (CalledProcessError, FileNotFoundError):
        return None
    return done.stdout.strip()


def _release() -> str | None:
    """Return name and version of the installed package that has this file; None without one.

    Another copy of the package may be installed too.
    """
    source_file = Path(__file__)
    for package in distributions(name="pipegap"):
        if (
            Path(str(package.locate_file(source_file.relative_to(CODE_ROOT)))).resolve()
            == source_file.resolve()
        ):
            return f"pipegap {package.version}"
    return None


_code = cache(code_version)
"""`code_version` of the first call: a process goes on with the code that it imported."""
