"""How a recorded config is read: what people call its choices, and keys that are younger than it.

The names are those of YAMLs in conf/. What must be known of a choice of ours without its code, and
without torch, its YAML says in lines at its top (`Declared`).
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import yaml

from pipegap.trainer.base import former
from pipegap.trainer.base.build import Node, is_own, label, published
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.former import YOUNGER
from pipegap.trainer.base.places import CONF

HEADER = re.compile("# (name|arm|theory):(.*)")
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Between two words of the name of a class."""
GROUPS = ("model", "data", "optimizer", "pipeline", "correction", "lr_schedule")
"""What is chosen of a trial; the folders of conf/ that hold its choices."""


class Declared(NamedTuple):
    """What the YAML of a choice says of it: lines `# key: …` before its first key, and its values.

    In `name` and `arm`, `{key}` stands for a value of the choice.
    """

    name: str | None
    """What people call it in figures and prose; None: the name of the file, in words."""
    arm: str
    """Its part of the name of an arm, which leaves out values that are `usual`, unless it has their
    `{key}`."""
    theory: str | None
    """Its filter in `analysis.theory.linear`, or after `none:` why it has none; None: unknown."""
    usual: Node


@cache
def declared(group: str) -> dict[str, Declared]:
    """Return by name what the YAML of each choice of ours in a group says of it."""
    choices = {}
    for path in yamls(group):
        matches = map(HEADER.match, path.read_text("utf-8").splitlines())
        lines = {match[1]: match[2].strip() for match in matches if match}
        name, arm, theory = map(lines.get, Declared._fields[:3])
        choices[path.stem] = Declared(name, arm or path.stem, theory, _presets(group)[path.stem])
    return choices


def kind(group: str, node: Node) -> str:
    """Return what a pipeline, a correction or an optimizer is, by whatever name it was chosen.

    Of ours it is the name of the YAML with its address. A class `MyIdea` of one's own in a file
    my_idea.py, or a pipeline's function `my_idea` there, is `my_idea`, unless it would read like
    one of ours; else it is the address, which has a dot.
    """
    address = published(str(node["_target_"]))
    if ours := _alike(group, address):
        return ours[0][0]
    if is_own(address):
        return label(node)
    module, _, name = address.rpartition(".")
    is_class = name[:1].isupper()
    is_alone = module == spaced(name, "_") and is_class == (group == "correction")
    return module if is_alone and not _reads_like_ours(group, module) else address


def _reads_like_ours(group: str, name: str) -> bool:
    """Whether an arm with this name as its part of `group` could be called as an arm of ours."""
    choices = declared(group)
    ours = {*choices, *(choice.arm.partition("(")[0] for choice in choices.values())}
    return name in ours or any(
        group == "pipeline" and name.startswith(f"{choice_name}_") for choice_name in ours
    )


def spaced(name: str, space: str = " ") -> str:
    """Return `smaller steps` for `smaller_steps` and for `SmallerSteps`."""
    return HUMP.sub("_", name).lower().replace("_", space)


LOOP = "trainer.delayed.loop"
"""Where the choices of a recorded loop of one's own have their `_target_`. Nothing is there: only
the loop can make the trial."""
WORDS = "words"
"""The key of a recorded loop's config that holds the words of the loop's own."""
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
    """Whether a word is a number, which a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_of_loop(config: Mapping[str, Any]) -> bool:
    """Whether `pipegap.trainer.delayed.record` made the config, of a loop of one's own."""
    return str(config["model"]["_target_"]).startswith(f"{LOOP}.")


def own_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words of a recorded loop's own, wherever its config holds them."""
    words = {key: value for key, value in config.items() if key not in DEFINED}
    nested = words.pop(WORDS, {})
    return words | (nested if isinstance(nested, dict) else {WORDS: nested})


@cache
def trial_keys() -> frozenset[str]:
    """Return the keys of a trial's config: conf/config.yaml has them all."""
    return frozenset(yaml.safe_load((CONF / "config.yaml").read_text("utf-8")))


def names(config: Mapping[str, Any]) -> dict[str, str]:
    """Group → name of its choice, for every choice in a config.

    The recorded name, `config["choices"]`, counts unless its YAML names another class than the
    config: then somebody set `_target_` by hand. Configs made before names were recorded have none.
    Without a name that counts, the choice gets that of the group's YAML with the same published
    address. Of several such YAMLs the one wins that shares the most values with the choice (of a
    path the last component counts), then the one with the fewest keys that differ, then the first
    in the alphabet. If there is none, or none of several shares a value, the choice is called by
    its class (`trainer.base.build.label`).
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
    """Return where a config's data lies: `data.path`, or its name if it has no such key, as data of
    one's own may not."""
    return str(config["data"].get("path") or names(config)["data"])


def _closest(node: Node, candidates: Sequence[tuple[str, Node]]) -> str | None:
    for name, values in candidates:
        if values == node:  # the common case, and a cheap test
            return name
    ranked = sorted((*_unlikeness(node, values), name) for name, values in candidates)
    return next((name for unshared, _, name in ranked if unshared < len(node)), None)


def _unlikeness(node: Node, values: Node) -> tuple[int, int]:
    """How many values of `node` are not in `values`; how many keys of both together differ."""
    shared = sum(key in values and values[key] == value for key, value in node.items())
    return len(node) - shared, len(node.keys() | values.keys()) - shared


@cache
def _alike(group: str, address: str) -> list[tuple[str, Node]]:
    """Names and values of the group's YAMLs with this published address, in alphabetical order."""
    presets = _presets(group)
    return [
        (name, _values(node)) for name, node in presets.items() if _address(group, name) == address
    ]


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
    """Return the names of a group's choices that can be chosen with any path, and not without."""
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
    """Raises BadInput for the config of a trial that a loop of one's own made."""
    address = str(config["model"].get("_target_")) if isinstance(config.get("model"), dict) else ""
    if address.startswith(f"{LOOP}."):
        recorded = config.get("choices")
        pairs = recorded.items() if isinstance(recorded, dict) else ()
        choices_text = ", ".join(f"{group}={name}" for group, name in pairs)
        allowed = f"was recorded by a loop of your own ({choices_text}, seed={config.get('seed')})"
        raise BadInput("model", address, f"{allowed}: that loop runs it again, pipegap cannot")


def without_younger(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config without each key that has its value of YOUNGER: no hash depends on it.

    Groups of the config may be nested, or its keys have dots.
    """
    older = dict(config)
    for key, usual in YOUNGER.items():
        group, _, name = key.rpartition(".")
        node = older.get(group)
        if key in older and older[key] == usual:
            del older[key]
        elif isinstance(node, Mapping) and name in node and node[name] == usual:
            older[group] = {
                other_key: value for other_key, value in node.items() if other_key != name
            }
    return older
