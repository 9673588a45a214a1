"""What makes a trial: its id, a hash of all that may change a number; and how a recorded config is
read.
"""

import hashlib
import inspect
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import distributions, version
from pathlib import Path
from subprocess import CalledProcessError, run
from typing import Any, NamedTuple, TypeGuard

import yaml

from pipegap.trainer.base import former
from pipegap.trainer.base.build import (
    Node,
    build,
    code_digest,
    is_in,
    is_own,
    label,
    locate,
    published,
    use_code,
)
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.former import YOUNGER
from pipegap.trainer.base.places import CODE_ROOT, CONF
from pipegap.trainer.base.ranges import MAX_COUNT
from pipegap.trainer.models.checkpoint_files import weights_digest

HEADER = re.compile("# (name|arm|theory):(.*)")
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""The place between two words in the name of a class."""
GROUPS = ("model", "data", "optimizer", "pipeline", "correction", "lr_schedule")
"""The choices that make a trial; folders of conf/ of these names hold their YAMLs."""


class Declared(NamedTuple):
    """What the YAML of a choice says of it: lines `# key: …` at its top, and its values.

    They can be read without the choice's code, and without torch. In `name` and `arm`, `{key}`
    stands for a value of the choice.
    """

    name: str | None
    """Its name in figures and prose; None: the name of the file, in words."""
    arm: str
    """Its part of the name of an arm. Values that are `usual` are left out, except where the part
    has their `{key}`."""
    theory: str | None
    """Its filter in `analysis.theory`, or after `none:` why it has none; None: unknown."""
    usual: Node
    """The keys and values of the YAML."""


@cache
def declared(group: str) -> dict[str, Declared]:
    """Returns by name what the YAML of each choice of ours in a group says of it."""
    choices = {}
    for path in yamls(group):
        matches = map(HEADER.match, path.read_text("utf-8").splitlines())
        lines = {match[1]: match[2].strip() for match in matches if match}
        name, arm, theory = map(lines.get, Declared._fields[:3])
        choices[path.stem] = Declared(name, arm or path.stem, theory, _presets(group)[path.stem])
    return choices


def kind(group: str, node: Node) -> str:
    """Returns the kind of a pipeline, a correction or an optimizer, whatever name it was chosen by.

    The kind of ours is the name of the YAML with its address. A user's class `MyIdea` in a file
    my_idea.py, or a pipeline's function `my_idea` there, has the kind `my_idea`, unless that would
    read like one of ours; the kind of any other is its address, which has a dot.
    """
    address = published(str(node["_target_"]))
    if ours := _alike(group, address):
        return ours[0][0]
    if is_own(address):
        return label(node)
    module, _, name = address.rpartition(".")
    is_class = name[:1].isupper()  # of a correction; pipelines and optimizers are functions
    is_alone = module == spaced(name, "_") and is_class == (group == "correction")
    return module if is_alone and not _reads_like_ours(group, module) else address


def _reads_like_ours(group: str, name: str) -> bool:
    """Whether an arm with this name for its `group` could be called as an arm of ours is."""
    choices = declared(group)
    ours = {*choices, *(choice.arm.partition("(")[0] for choice in choices.values())}
    return name in ours or any(
        group == "pipeline" and name.startswith(f"{choice_name}_") for choice_name in ours
    )


def spaced(name: str, space: str = " ") -> str:
    """Returns `smaller steps` for `smaller_steps` and for `SmallerSteps`."""
    return HUMP.sub("_", name).lower().replace("_", space)


LOOP = "trainer.delayed.loop"
"""The module in the `_target_` of the choices of a loop that the user wrote and recorded. There is
no such module: only the loop can make the trial."""
WORDS = "words"
"""The key of a recorded loop's config that holds the loop's own words."""
DEFINED = (
    *GROUPS,
    *("seed", "batch_size", "seq_len", "num_updates", "clip_norm"),
    *("choices", "results", "out"),
)
"""Keys of a recorded loop's config that have a meaning; those of its choices lie in their groups.
Any other key is a word of the loop's own: 0.2 wrote these words beside the keys of this tuple, so
that a word could be taken for a key of a trial."""
COMPUTED_WITH = ("optimizer.lr", "optimizer.momentum", "optimizer.weight_decay", "clip_norm")
"""Keys that tables compute with, if a recorded loop has them."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a word is a number; a bool is none, though Python takes it for an int."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_of_loop(config: Mapping[str, Any]) -> bool:
    """Whether `pipegap.trainer.delayed.record` made the config, of a loop that the user wrote."""
    return str(config["model"]["_target_"]).startswith(f"{LOOP}.")


def own_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recorded loop's own words, wherever its config holds them."""
    words = {key: value for key, value in config.items() if key not in DEFINED}
    nested = words.pop(WORDS, {})
    # In 0.2 a word could itself be called `words`, of any type.
    return words | (nested if isinstance(nested, dict) else {WORDS: nested})


@cache
def trial_keys() -> frozenset[str]:
    """Returns the keys of a trial's config: conf/config.yaml has them all."""
    return frozenset(yaml.safe_load((CONF / "config.yaml").read_text("utf-8")))


def names(config: Mapping[str, Any]) -> dict[str, str]:
    """Group → name of its choice, for every choice in a config.

    The recorded name, in `config["choices"]`, counts unless the YAML of this name has another
    `_target_` than the config: then somebody set `_target_` by hand. Configs of versions that did
    not record names have none. Without a name that counts, the choice gets the name of the group's
    YAML with the same published address. Of several such YAMLs the one wins that shares the most
    values with the choice (of a path only the last component counts), then the one with the fewest
    keys that differ, then the first in the alphabet. If there is no such YAML, or several of which
    none shares a value, the choice is called by its class (`trainer.base.build.label`).
    """
    recorded = config.get("choices") or {}
    choices = {group: config.get(group) for group in GROUPS}
    return {
        group: _name(group, node, recorded.get(group))
        for group, node in choices.items()
        if is_choice(node)
    }


def is_choice(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value of a config is a choice: a class or function and its keys."""
    return isinstance(value, dict) and "_target_" in value


def yamls(group: str) -> list[Path]:
    """The YAML files of a group's choices, in alphabetical order."""
    return sorted((CONF / group).glob("*.yaml"))


def _name(group: str, node: Node, recorded: str | None) -> str:
    address = published(node["_target_"])
    # None: a choice of the user's own, or one of an earlier version, which conf/ does not have.
    if recorded is not None and _address(group, recorded) in (address, None):
        return recorded
    candidates = _alike(group, address)
    if len(candidates) == 1:
        return candidates[0][0]
    return _closest(_values(node), candidates) or label(node)


def is_offered(group: str, address: str) -> bool:
    """Whether this address is that of a choice in conf/, or of one that earlier versions had."""
    is_former = f"{group}={label({'_target_': address})}" in former.CHOICES
    return is_former or bool(_alike(group, published(address)))


def data_place(config: Mapping[str, Any]) -> str:
    """Returns where a config's data lies: `data.path`, or the data's name if it has no such key, as
    a user's own data may not."""
    return str(config["data"].get("path") or names(config)["data"])


def _closest(node: Node, candidates: Sequence[tuple[str, Node]]) -> str | None:
    for name, values in candidates:
        if values == node:  # the common case, and a cheap test
            return name
    # By the values of `node` that a candidate lacks, then by the keys in which the two differ.
    ranked = []
    for name, values in candidates:
        shared = sum(key in values and values[key] == value for key, value in node.items())
        ranked.append((len(node) - shared, len(node.keys() | values.keys()) - shared, name))
    return next((name for unshared, _, name in sorted(ranked) if unshared < len(node)), None)


@cache
def _alike(group: str, address: str) -> list[tuple[str, Node]]:
    """Names and values of the group's YAMLs with this published address, in alphabetical order."""
    names_there = (name for name in _presets(group) if _address(group, name) == address)
    return [(name, _values(_presets(group)[name])) for name in names_there]


@cache
def _address(group: str, name: str) -> str | None:
    """The published address in a YAML; None if there is no such YAML, or it has no `_target_`."""
    path = _presets(group).get(name, {}).get("_target_")
    return None if path is None else published(path)


@cache
def _presets(group: str) -> dict[str, Node]:
    """Name → content, of each YAML of a group."""
    return {path.stem: yaml.safe_load(path.read_text("utf-8")) or {} for path in yamls(group)}


@cache
def of_any_path(group: str) -> frozenset[str]:
    """Returns the names of a group's choices for which the user must set a path."""
    return frozenset(name for name, node in _presets(group).items() if node.get("path") == "???")


def _values(node: Node) -> Node:
    """The keys of `node` without `_target_`.

    Of a path only the last component is kept, because a store may be moved together with its data.
    """
    return {
        key: str(value).rstrip("/").rpartition("/")[2] if key == "path" else value
        for key, value in node.items()
        if key != "_target_"
    }


def refuse_own_loop(config: Mapping[str, Any]) -> None:
    """Raises BadInput for the config of a trial that a user's own loop made."""
    address = str(config["model"].get("_target_")) if isinstance(config.get("model"), dict) else ""
    if address.startswith(f"{LOOP}."):
        recorded = config.get("choices")
        pairs = recorded.items() if isinstance(recorded, dict) else ()
        choices_text = ", ".join(f"{group}={name}" for group, name in pairs)
        allowed = f"was recorded by a loop of your own ({choices_text}, seed={config.get('seed')})"
        raise BadInput("model", address, f"{allowed}: that loop runs it again, pipegap cannot")


def without_younger(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config without the keys that have their value of YOUNGER.

    So the hash of a trial stays as it was before there were these keys. Groups of the config may be
    nested, or its keys may have dots.
    """
    older = dict(config)
    for key, usual in YOUNGER.items():
        group, _, name = key.rpartition(".")
        node = older.get(group)
        if key in older and older[key] == usual:
            del older[key]
        elif isinstance(node, Mapping) and name in node and node[name] == usual:
            older[group] = {k: value for k, value in node.items() if k != name}
    return older


# An id names values, not words: the resolved keys of the config, the hash of the data and the
# trainer's version. The names of choices (`model=tiny`) are left out: two names for the same values
# are one trial, and an edited YAML makes another trial. A choice counts by the address under which
# its class was first published (`trainer.base.build.MOVED`), wherever the class lives now;
# `trainer.config.schema.validate` writes that address. A class from outside this package counts by
# its address and by two source files: of the module in the address and of the module that defines
# the class. Modules that these import, and code without a source file (built in, compiled), do not
# count. A class from the folder `code` counts by all Python files of that folder.

TRAINER_VERSION = 2
"""Raised by hand when a fix changes numbers: results of different versions are never mixed."""

COMPILED_FIXES = 2
"""Raised by hand when a fix changes the numbers of `compile=update` alone."""

HEAD_FIXES = 1
"""Raised by hand when a fix changes the numbers only of models whose head is not the embedding."""

TIED_CLIP_FIXES = 1
"""Raised by hand when a fix changes the numbers only of trials whose stages clip by themselves and
hold copies of one weight."""

OWN_DATA = "trainer.data."
"""The start of the published addresses of this package's data classes."""

CHANGES_NO_NUMBER = (
    *("choices", "results", "out", "data.path", "data.skip_bad_rows", "code"),
    *("save_final", "save_last", "checkpoint_every", "timeout", "trace"),
)
"""Keys left out of the id. The data counts by its hash, not by its path."""

COMMIT = "PIPEGAP_COMMIT"
"""Environment variable with the commit of a source tree that was copied without git."""


def version_of(config: Mapping[str, Any]) -> int:
    """Returns the version of the trainer that the numbers of a trial belong to."""
    if is_of_loop(config):
        return TRAINER_VERSION
    is_compiled, model = config["compile"] == "update", config["model"]
    default = getattr(locate(model["_target_"]), "tied_embeddings", True)
    has_head = model.get("tied_embeddings", default) is False
    clips_copies = not has_head and _clips_by_stage(config)
    # Added up, so that a raise of any of them makes another version of the trials it concerns.
    fixes = COMPILED_FIXES * is_compiled + HEAD_FIXES * has_head + TIED_CLIP_FIXES * clips_copies
    return TRAINER_VERSION + fixes


def _clips_by_stage(config: Mapping[str, Any]) -> bool:
    """Whether a clip acts on several stages, on each by itself."""
    if config["clip_norm"] is None or config["clip_scope"] != "stage":
        return False
    # Any length will do where tokens_per_parameter sets it: the number of stages is the same.
    return build(config["pipeline"], config["num_updates"] or MAX_COUNT).num_stages > 1


def trial_id(config: Mapping[str, Any], data_hash: str | None) -> str:
    """Returns 16 hexadecimal digits, a hash of resolved config, data and trainer's version."""
    identity = {
        "config": _of_loop(config) if is_of_loop(config) else _of_trial(config),
        "data_hash": data_hash,
        "trainer_version": version_of(config),
    }
    if foreign := sources(config):  # no key without them: ids of our own choices have none
        identity["sources"] = foreign
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _of_loop(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the id of a recorded loop hashes: every word, since any may change a number.

    The loop's own words count beside the keys, where 0.2 wrote them.
    """
    left_out = ("choices", "results", "out", WORDS)
    hashed_config = {key: value for key, value in config.items() if key not in left_out}
    data = {key: value for key, value in config["data"].items() if key != "path"}
    return hashed_config | own_words(config) | {"data": data}


def _of_trial(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the id of a trial hashes: what may change a number."""
    # Through JSON: a deep copy, with lists in place of tuples.
    hashed_config: dict[str, Any] = json.loads(json.dumps(without_younger(config)))
    for key in CHANGES_NO_NUMBER:
        *path, last = key.split(".")
        node = hashed_config
        for part in path:
            node = node[part]
        node.pop(last, None)
    if published(hashed_config["data"]["_target_"]).startswith(OWN_DATA):
        # Keys that only change the data, for which its hash stands.
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
    """Returns the content of a module's source file; empty without one."""
    try:
        path = inspect.getsourcefile(import_module(module))
    except TypeError:  # built in
        return b""
    return Path(path).read_bytes() if path is not None else b""


def provenance(
    config: Mapping[str, Any], trial_id: str, data_hash: str | None, device_name: str
) -> dict[str, Any]:
    """The record of what made a result: ids, sources, versions of libraries and code, device."""
    return {
        "trial_id": trial_id,
        "data_hash": data_hash,
        "trainer_version": version_of(config),
        "sources": sources(config),
        **made_by(device_name),
    }


def made_by(device_name: str) -> dict[str, Any]:
    """Returns code, versions of Python and libraries, and the kinds of device and processor.

    Results, attempts and checkpoints record them.
    """
    from pipegap.trainer.base.resources import processor_name  # torch is slow

    versions = {name: version(name) for name in ("torch", "numpy", "pytorch_optimizer")}
    return {
        "git": _code(),
        "versions": {"python": platform.python_version(), **versions},
        "device_name": device_name,
        "processor": processor_name(),
    }


def code_version() -> str | None:
    """Returns a name for the source code that runs; None if there is none.

    In a git repository: its commit, with `-dirty` if the tree was changed. In a copy without git:
    the value of `PIPEGAP_COMMIT`. Installed from a wheel: e.g. "pipegap 0.1.0".
    """
    return _commit() or os.environ.get(COMMIT) or _release()


def _commit() -> str | None:
    """Returns the commit of the repository that tracks this file; None without such a repository.

    An installed copy may lie inside a repository that does not track the copy.
    """
    source_file = Path(__file__)
    tracks = ["git", "ls-files", "--error-unmatch", source_file.name]
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for command in (tracks, describe):
            result = run(command, cwd=source_file.parent, check=True, capture_output=True)
    except (CalledProcessError, FileNotFoundError):  # not tracked; no git
        return None
    return result.stdout.decode().strip()


def _release() -> str | None:
    """Returns name and version of the installed package that has this file; None without one.

    Another copy of the package may be installed too.
    """
    source_file = Path(__file__)
    for package in distributions(name="pipegap"):
        installed_file = Path(str(package.locate_file(source_file.relative_to(CODE_ROOT))))
        if installed_file.resolve() == source_file.resolve():
            return f"pipegap {package.version}"
    return None


_code = cache(code_version)
"""`code_version` at its first call: the files may change, the code that was imported does not."""
