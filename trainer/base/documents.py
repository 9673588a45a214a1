"""Reads YAML, of files and of words, within bounds that no honest document comes near.

Scalars are numbers, true, false and null as YAML 1.2 has them: 1e-3 is a number, and `on`, 010 and
12:30 are text. An alias stands for one value only, because a few lines of aliases to lists can
stand for gigabytes; tags are not read.
"""

import re
from typing import Any

import yaml
from typing_extensions import override

from trainer.base.errors import short

MAX_LENGTH = 30_000
"""Characters: these are read within a second."""
MAX_DEPTH = 20
"""Lists and mappings within each other."""
LONGEST_NUMBER = 100
"""Digits of a whole number; a longer one is text."""

INT = rf"[-+]?(0|[1-9][0-9_]{{0,{LONGEST_NUMBER - 1}}})"
EXPONENT = r"[eE][-+]?[0-9]+"
FLOAT = rf"[-+]?(([0-9][0-9_]*\.[0-9_]*|\.[0-9]+)({EXPONENT})?|[0-9][0-9_]*{EXPONENT})"
NOT_FINITE = r"[-+]?\.?(?i:inf|nan)"


class NotRead(ValueError):
    """A text that is no YAML, or beyond the bounds. The message is one line."""


def read(text: str) -> Any:
    """Returns the YAML `text` as plain data: dicts, lists, strings, numbers, booleans and None.

    Raises NotRead, also for a key that is there twice: YAML's own loader would keep the last value.
    """
    if len(text) > MAX_LENGTH:
        raise NotRead(f"it has more than {MAX_LENGTH:,} characters")
    try:
        return yaml.load(text, Loader=_Bounded)
    except yaml.MarkedYAMLError as error:
        raise NotRead(_where(error)) from None
    except (yaml.YAMLError, ValueError) as error:
        raise NotRead(short(" ".join(str(error).split()))) from None


def scalar(text: str) -> str | int | float | bool | None:
    """Returns the number, boolean or None that `text` writes without quotes; else `text`."""
    loader = _Bounded("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    return loader.construct_object(yaml.ScalarNode(tag, text))


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return short(f"{error.problem or error.context}{where}")


class _Bounded(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's, which copies it)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    @override
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if not isinstance(node, yaml.ScalarNode):
                self._refuse("an alias (*name) stands for more than one value", event)
            return node
        if event.tag is not None:
            self._refuse(f"a tag ({event.tag}) is not read", event)
        if self._depth == MAX_DEPTH:
            self._refuse(f"more than {MAX_DEPTH} lists and mappings within each other", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(made) < len(node.value):
            self._refuse_repeated([(self.construct_object(key), key) for key, _ in node.value])
        return made

    def _refuse_repeated(self, keys: list[tuple[object, yaml.Node]]) -> None:
        seen = set()
        for key, node in keys:
            if key in seen:
                self._refuse(f"the key {key} is there twice: remove or rename one", node)
            seen.add(key)

    def _refuse(self, problem: str, at: Any) -> None:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


for _tag, _pattern, _first in (
    ("bool", "(?i:true|false)", "tTfF"),
    ("null", "~|(?i:null)|", ["~", "n", "N", ""]),
    ("int", INT, "-+0123456789"),
    ("float", f"{FLOAT}|{NOT_FINITE}", "-+0123456789.iInN"),
):
    _Bounded.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), [*_first]
    )
