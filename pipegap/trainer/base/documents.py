"""Reads YAML, of files and of words, by PyYAML's safe loader with the scalars of YAML 1.2.

1e-3 is a number, and `on`, 010 and 12:30 are text. A key that is there twice is refused.

A module apart from the command lines: those are imported before the working folder, where a user's
`yaml.py` may lie, has left the path of imports.
"""

import re
from typing import Any

import yaml
from typing_extensions import override

from pipegap.trainer.base.errors import short

INT = r"[-+]?(0|[1-9][0-9_]*)"
EXPONENT = r"[eE][-+]?[0-9]+"
FLOAT = rf"[-+]?(([0-9][0-9_]*\.[0-9_]*|\.[0-9]+)({EXPONENT})?|[0-9][0-9_]*{EXPONENT})"
NOT_FINITE = r"[-+]?\.?(?i:inf|nan)"


class NotRead(ValueError):
    """A text is no YAML. The message is one line."""


def read(text: str) -> Any:
    """Returns the YAML `text` as plain data: dicts, lists, strings, numbers, booleans and None.

    Raises NotRead, also for a duplicate key, of which PyYAML's own loader keeps the last value.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise NotRead(_where(error)) from None
    except (yaml.YAMLError, ValueError) as error:
        raise NotRead(short(" ".join(str(error).split()))) from None


def scalar(text: str) -> str | int | float | bool | None:
    """Returns the number, boolean or None that `text` writes without quotes; else `text`."""
    loader = _Loader("")
    # (True, False): a plain scalar, whose tag the resolvers choose by its text.
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    return loader.construct_object(yaml.ScalarNode(tag, text))


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return short(f"{error.problem or error.context}{where}")


class _Loader(yaml.SafeLoader):
    # Empty: without the resolvers of YAML 1.1; the ones of 1.2 are added below.
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's, which copies it)

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):  # some key is a duplicate
            keys = [self.construct_object(key) for key, _ in node.value]
            twice = next(i for i, key in enumerate(keys) if key in keys[:i])
            problem = f"the key {keys[twice]} is there twice: remove or rename one"
            mark = node.value[twice][0].start_mark
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return mapping


for _tag, _pattern, _first in (
    ("bool", "(?i:true|false)", "tTfF"),
    ("null", "~|(?i:null)|", ["~", "n", "N", ""]),
    ("int", INT, "-+0123456789"),
    ("float", f"{FLOAT}|{NOT_FINITE}", "-+0123456789.iInN"),
):
    _regexp = re.compile(f"(?:{_pattern})$")
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _regexp, [*_first])
