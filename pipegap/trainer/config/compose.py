"""Composes a trial's config with Hydra from the words of a command line."""

import re
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipegap.trainer.base import documents
from pipegap.trainer.base.build import require_code
from pipegap.trainer.base.cli import one_of, split_word
from pipegap.trainer.base.errors import BadInput, closest_first
from pipegap.trainer.base.former import is_dropped, refuse_dropped_choice
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.identity import GROUPS
from pipegap.trainer.config.schema import validate

# `GROUP=NAME` chooses a YAML of conf/, or of the folder `code`. `KEY=VALUE` sets a key that the
# config has, `+KEY=VALUE` also a new key. No other word of Hydra's is offered.
#
# Hydra's own parser of words is not used: it refuses a plain path such as data/dätä, a=b or (a),
# takes `a,b` for a sweep, keeps the last of two equal keys, and needs 17 times as long.

CODE = "code"
REFERENCE = re.compile(r"\$\{(\w+(?:\.\w+)*)\}")
"""A reference to another key, such as ${num_updates}."""


@dataclass(frozen=True)
class Word:
    """A parsed word. `text` is the value as written; `adds` allows a new key, and a word that is
    set `if_there` has no effect on a choice without its key."""

    key: str
    text: str
    value: Any
    adds: bool
    if_there: bool = False

    @property
    def name(self) -> str:
        """The name of a choice, if the word chooses one."""
        return self.value if isinstance(self.value, str) else self.text  # a name such as 125


@dataclass(frozen=True)
class ParsedWords:
    """All words of a config. `choices` maps group → name; later `settings` count more.

    `code` is the folder of the user's own choices.
    """

    code: str | None
    choices: dict[str, str]
    settings: list[Word]

    def require_choices(self) -> None:
        """Raises BadInput for a choice without a YAML of its name."""
        places = [CONF, *([] if self.code is None else [Path(self.code)])]
        for group, name in self.choices.items():
            names_there = {path.stem for place in places for path in (place / group).glob("*.yaml")}
            if name not in names_there:
                refuse_dropped_choice(group, name)
                raise one_of(group, name, sorted(names_there))


def parse(words: Sequence[Word]) -> ParsedWords:
    """Joins the words. The last choice of a group counts, and the last folder of code."""
    code = None
    # Only the last one: an earlier folder that is not there is no mistake.
    for word in [word for word in words if word.key == CODE][-1:]:
        if word.value is not None:
            require_code(code := word.name)
    choices = {word.key: word.name for word in words if word.key in GROUPS}
    settings = [word for word in words if word.key not in GROUPS]
    return ParsedWords(code, choices, settings)


def parse_word(word: str) -> Word:
    """Parses a word. Raises BadInput for a word that is not offered."""
    key, text = split_word(word)
    plain = key.lstrip("+")  # Hydra's ++ is read as +
    if plain.startswith("~"):  # Hydra's word that deletes a key
        raise BadInput(key, text, "is not offered: a key is set to another value, not removed")
    if plain == "choices" or plain.startswith("choices."):
        raise BadInput(plain, text, "is recorded, not set: choose by GROUP=NAME")
    if plain.partition(".")[0] == "hydra":
        raise BadInput(plain, text, "has no effect: code=DIR has choices of one's own")
    value = parse_value(plain, text)
    _require_references(plain, text, value)
    return Word(plain, text, value, adds=plain != key)


def parse_value(key: str, text: str) -> Any:
    """Parses a value as written on a command line; returns plain data. Raises BadInput.

    Quotes make any value a text, [a, b] is a list, {a: b} a mapping. Any other value that is no
    number, true, false or null is a text.
    """
    if text and not text.startswith(("'", '"', "[", "{")):
        return documents.scalar(text)
    try:
        return documents.read(text) if text else text
    except documents.NotRead as error:
        raise BadInput(key, text, f"must be one value, in quotes if need be ({error})") from None


def _require_references(key: str, text: str, value: Any) -> None:
    """Raises BadInput for an interpolation that is more than a reference to another key.

    `${oc.env:WANDB_API_KEY}` would write a secret to the store and to messages, and a config must
    not depend on its environment.
    """
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _require_references(key, text, item)
    elif isinstance(value, str) and "$" in value and not REFERENCE.fullmatch(value):
        raise BadInput(key, text, "may refer to another key alone, such as ${num_updates}")


# The one place of the trainer that knows Hydra. Hydra composes the YAMLs of the choices. Keys are
# set here, so that a mistake in a word is found, and worded, by us before Hydra sees it.

Node = dict[str, Any]
MISSING = "???"
"""The value of a key in a YAML that the user must set."""
NOWHERE = object()
"""In place of the value of a key that does not exist; None is a value."""


def compose(words: Sequence[str]) -> Node:
    """Returns the resolved, validated config of `words` over conf/config.yaml.

    Raises BadInput for a word that is not offered, or a value that the schema does not accept.
    """
    return Composer()(words)


class Composer:
    """`compose` for many configs: Hydra composes each set of choices once, and keys are set in
    copies.

    A word of `if_there` that sets a key of a choice has no effect where the choice lacks the key,
    as a choice of the user's own may.
    """

    def __init__(self, if_there: Collection[str] = ()) -> None:
        self._if_there = if_there
        self._parsed: dict[str, Word] = {}
        self._composed: dict[str, tuple[Node, Node]] = {}

    def __call__(self, words: Sequence[str]) -> Node:
        """See `compose`."""
        return validate(self.node(words))

    def node(self, words: Sequence[str]) -> Node:
        """Returns the resolved config of `words` without validating it."""
        parsed = parse([self._parse(word) for word in words])
        node, names = self._chosen(parsed)
        for word in parsed.settings:
            if not is_dropped(word.key, word.value):
                _set(node, word)
        # After all words: a reference reads the value that they leave.
        resolved = {key: _value(value, node, key, ()) for key, value in node.items()}
        return {**resolved, "choices": names}

    def _parse(self, word: str) -> Word:
        if word not in self._parsed:
            parsed = parse_word(word)
            is_of_choice = parsed.key.partition(".")[0] in GROUPS
            self._parsed[word] = replace(parsed, if_there=is_of_choice and word in self._if_there)
        return self._parsed[word]

    def _chosen(self, parsed: ParsedWords) -> tuple[Node, Node]:
        """Returns a copy of the node of the choices, references as written, and their names."""
        key = str((parsed.code, sorted(parsed.choices.items())))
        if key not in self._composed:
            self._composed[key] = _compose(parsed)
        return deepcopy(self._composed[key])


def _compose(parsed: ParsedWords) -> tuple[Node, Node]:
    """Returns the node of the choices, and for each group the name of the chosen YAML."""
    parsed.require_choices()
    words = [f"{group}={name}" for group, name in parsed.choices.items()]
    if parsed.code is not None:  # in quotes, since Hydra parses this word
        quoted = parsed.code.replace("'", r"\'")
        words.append(f"hydra.searchpath=['file://{quoted}']")
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            # With Hydra's own node: it has the names of the choices, defaults among them.
            config = hydra_compose("config", words, return_hydra_config=True)
        choices = config.hydra.runtime.choices
        names = {group: choices[group] for group in GROUPS if choices.get(group)}
        node: Any = OmegaConf.to_container(config, resolve=False)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:  # of a YAML of the user's
        allowed = f"must be YAMLs that Hydra composes ({' '.join(str(error).split())})"
        raise BadInput(CODE, " ".join(words), allowed) from None
    return {key: value for key, value in node.items() if key != "hydra"}, names


def _set(node: Node, word: Word) -> None:
    """Sets the word's key. Raises BadInput for a new key, unless the word adds it."""
    path, _, last = word.key.rpartition(".")
    holder = _at(node, path) if path else node
    if not isinstance(holder, dict) or not (word.adds or last in holder):
        if word.if_there:
            return
        # First the keys whose last part is right, such as optimizer.lr for lr; the sort is stable.
        keys = closest_first(word.key, _keys(node))
        keys.sort(key=lambda key: key.rpartition(".")[2] != last)
        allowed = f"must be a key of the config (the closest are {', '.join(keys[:4])})"
        raise BadInput(word.key, word.text, allowed)
    holder[last] = word.value


def _keys(node: Node, prefix: str = "") -> Iterator[str]:
    """All keys of the node and of those inside it, with dots."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{key}.")


def _value(value: Any, root: Node, key: str, trail: tuple[str, ...]) -> Any:
    """Returns `value` with values of `root` in place of references (${num_updates}).

    `trail` are the references that led here, so that a circle of them is refused.
    """
    if isinstance(value, dict):
        return {name: _value(item, root, f"{key}.{name}", trail) for name, item in value.items()}
    if isinstance(value, list):
        return [_value(item, root, key, trail) for item in value]
    if value == MISSING:
        raise BadInput(key, value, "must be given")
    if not isinstance(value, str) or "$" not in value:
        return value
    reference = REFERENCE.fullmatch(value)
    target = _at(root, reference[1]) if reference else NOWHERE
    if target is NOWHERE or isinstance(target, dict | list) or value in trail:
        raise BadInput(key, value, "must refer to a key with one value, such as ${num_updates}")
    return _value(target, root, key, (*trail, value))


def _at(node: Any, key: str) -> Any:
    """The value of a dotted key; NOWHERE if there is none."""
    for part in key.split("."):
        node = node.get(part, NOWHERE) if isinstance(node, dict) else NOWHERE
    return node
