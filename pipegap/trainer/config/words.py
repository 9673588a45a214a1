"""The words of a command line that make a trial's config: what each word asks for.

`GROUP=NAME` chooses a YAML of conf/, or of the folder `code`. `KEY=VALUE`
sets a key that the config has, `+KEY=VALUE` also a new key. No other word of Hydra's is offered.

Hydra's own parser of words is not used: it refuses a plain path such as data/dätä, a=b or (a),
takes `a,b` for a sweep, keeps the last of two equal keys, and needs 17 times as long.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipegap.trainer.base import documents
from pipegap.trainer.base.cli import one_of, split_word
from pipegap.trainer.base.code import require_code
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.former import refuse_dropped_choice
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.names import GROUPS

CODE = "code"
STRUCTURED = ("'", '"', "[", "{")
"""How a value starts that is quoted, a list or a mapping."""
REFERENCE = re.compile(r"\$\{(\w+(?:\.\w+)*)\}")


@dataclass(frozen=True)
class Word:
    """A word that was read. `given` is the value as written; `adds` allows a new key, and a word
    that is set `if_there` has no effect on a choice without its key."""

    key: str
    given: str
    value: Any
    adds: bool
    if_there: bool = False

    @property
    def name(self) -> str:
        """The name of a choice, if the word chooses one."""
        return self.value if isinstance(self.value, str) else self.given


@dataclass(frozen=True)
class ParsedWords:
    """All words of a config. `choices` maps group → name; later `settings` count more.

    `code` is the folder of the user's own choices.
    """

    code: str | None
    choices: dict[str, str]
    settings: list[Word]

    def require_choices(self) -> None:
        """Raises BadInput for a choice that no YAML has as its name."""
        places = [CONF, *([] if self.code is None else [Path(self.code)])]
        for group, name in self.choices.items():
            names_there = {path.stem for place in places for path in (place / group).glob("*.yaml")}
            if name not in names_there:
                refuse_dropped_choice(group, name)
                raise one_of(group, name, sorted(names_there))


def parse(words: Sequence[Word]) -> ParsedWords:
    """Joins the words. The last choice of a group counts, and the last folder of code."""
    code = None
    for word in [word for word in words if word.key == CODE][-1:]:
        if word.value is not None:
            require_code(code := word.name)
    choices = {word.key: word.name for word in words if word.key in GROUPS}
    settings = [word for word in words if word.key not in GROUPS]
    return ParsedWords(code, choices, settings)


def parse_word(word: str) -> Word:
    """Reads a word. Raises BadInput for a word that is not offered."""
    key, text = split_word(word)
    plain = key.lstrip("+")
    if plain.startswith("~"):
        raise BadInput(key, text, "is not offered: a key is set to another value, not removed")
    if plain == "choices" or plain.startswith("choices."):
        raise BadInput(plain, text, "is recorded, not set: choose by GROUP=NAME")
    if plain.partition(".")[0] == "hydra":
        raise BadInput(plain, text, "has no effect: code=DIR has choices of one's own")
    value = parse_value(plain, text)
    _require_references(plain, text, value)
    return Word(plain, text, value, adds=plain != key)


def parse_value(key: str, text: str) -> Any:
    """Reads a value as written on a command line; returns plain data. Raises BadInput.

    Quotes make text of anything, [a, b] is a list, {a: b} a mapping. Any other value that is no
    number, true, false or null is text as it stands.
    """
    if text and not text.startswith(STRUCTURED):
        return documents.scalar(text)
    try:
        return documents.read(text) if text else text
    except documents.NotRead as error:
        raise BadInput(key, text, f"must be one value, in quotes if need be ({error})") from None


def _require_references(key: str, text: str, value: Any) -> None:
    """Raises BadInput for an interpolation that is more than a reference to another key.

    `${oc.env:WANDB_API_KEY}` would write a secret to the store and to messages, and a config must
    not depend on what surrounds it.
    """
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _require_references(key, text, item)
    elif isinstance(value, str) and "$" in value and not REFERENCE.fullmatch(value):
        raise BadInput(key, text, "may refer to another key alone, such as ${num_updates}")
