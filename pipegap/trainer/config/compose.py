"""Composes a trial's config with Hydra: the one place of the trainer that knows Hydra.

Hydra composes the YAMLs that are chosen. Keys are set here, so that every mistake in a word is
found in our own words before Hydra is asked.
"""

from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipegap.trainer.base.errors import BadInput, closest_first
from pipegap.trainer.base.former import is_dropped
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.names import GROUPS
from pipegap.trainer.config.schema import validate
from pipegap.trainer.config.words import CODE, REFERENCE, ParsedWords, Word, parse, parse_word

Node = dict[str, Any]
SUGGESTED = 4
"""Known keys that the refusal of an unknown key names."""
MISSING = "???"
"""What a YAML has for a value that must be given."""
NOWHERE = object()


def compose(words: Sequence[str]) -> Node:
    """Return the resolved, validated config of `words` over conf/config.yaml.

    Raises BadInput for a word that is not offered, or a value that the schema does not accept.
    """
    return Composer()(words)


class Composer:
    """`compose` for many configs: Hydra composes each set of choices once, copies get the keys.

    Of the words `if_there` those that set a key of a choice have no effect where the choice does
    not have the key, as one of one's own may not.
    """

    def __init__(self, if_there: Collection[str] = ()) -> None:
        self._if_there = if_there
        self._parsed: dict[str, Word] = {}
        self._composed: dict[str, tuple[Node, Node]] = {}

    def __call__(self, words: Sequence[str]) -> Node:
        """See `compose`."""
        return validate(self.node(words))

    def node(self, words: Sequence[str]) -> Node:
        """Return the resolved config of `words` without validating it."""
        parsed = parse([self._parse(word) for word in words])
        node, names = self._chosen(parsed)
        for word in parsed.settings:
            if not is_dropped(word.key, word.value):
                _set(node, word)
        resolved = {key: _value(value, node, key, ()) for key, value in node.items()}
        return {**resolved, "choices": names}

    def _parse(self, word: str) -> Word:
        if word not in self._parsed:
            parsed = parse_word(word)
            is_of_choice = parsed.key.partition(".")[0] in GROUPS
            self._parsed[word] = replace(parsed, if_there=is_of_choice and word in self._if_there)
        return self._parsed[word]

    def _chosen(self, parsed: ParsedWords) -> tuple[Node, Node]:
        """Return a copy of the node of the choices, references as written, and their names."""
        key = str((parsed.code, sorted(parsed.choices.items())))
        if key not in self._composed:
            self._composed[key] = _compose(parsed)
        return deepcopy(self._composed[key])


def _compose(parsed: ParsedWords) -> tuple[Node, Node]:
    """Return the node of the choices, and for each group the name of the chosen YAML."""
    parsed.require_choices()
    words = [f"{group}={name}" for group, name in parsed.choices.items()]
    if parsed.code is not None:
        quoted = parsed.code.replace("'", r"\'")
        words.append(f"hydra.searchpath=['file://{quoted}']")
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
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
        suggestions = closest_first(word.key, _keys(node))
        suggestions = sorted(suggestions, key=lambda key: key.rpartition(".")[2] != last)[
            :SUGGESTED
        ]
        allowed = f"must be a key of the config (the closest are {', '.join(suggestions)})"
        raise BadInput(word.key, word.given, allowed)
    holder[last] = word.value


def _keys(node: Node, prefix: str = "") -> Iterator[str]:
    """All keys, with dots."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{key}.")


def _value(value: Any, root: Node, key: str, trail: tuple[str, ...]) -> Any:
    """Return `value` with values of `root` in place of references (${num_updates}).

    `trail` are the references that led here.
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
