"""Pages with parts that are made: each stands between a marker and `<!-- end -->`.

A marker is a call: `<!-- verdicts sweep=momentum scale=tiny -->` calls the function `verdicts` of
one of MODULES with these words. A table stays as it is; a sentence is wrapped in lines of WIDTH.
"""

import inspect
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from findings.code import forecasts, measures, others, sentences, tables, theory
from findings.code.cells import Markdown
from findings.code.published import FINDINGS, ROOT
from trainer.base.cli import one_of
from trainer.base.errors import BadInput

MODULES = (forecasts, measures, others, sentences, tables, theory)
CALLS: Mapping[str, Callable[..., str]] = {
    name: function
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith("_")
}
"""Every public function of MODULES by its name."""
PARTS = re.compile(r"<!-- (?!end -->)(.*?) -->\n(.*?)(?=<!-- )(<!-- end -->)?", re.DOTALL)
WIDTH = 120
"""Columns of the prose."""


def pages() -> list[Path]:
    """The pages with parts that are made."""
    docs = [ROOT / "docs" / f"{page}.md" for page in ("advise", "theory", "forecast", "evaluation")]
    return [ROOT / "README.md", *docs, *sorted(FINDINGS.rglob("*.md"))]


def made(text: str, page: Path) -> str:
    """The text of a page with every part made again. Raises BadInput, which names the page, for a
    marker that is no call, or that has no end."""

    def part(place: re.Match[str]) -> str:
        marker, _, end = place.groups()
        try:
            if end is None:
                raise BadInput("marker", marker, "must be followed by <!-- end -->")
            content = call(marker)
        except BadInput as error:
            raise BadInput(os.path.relpath(page, ROOT), marker, str(error)) from None
        linked = _linked(content, page)
        shown = linked if isinstance(content, Markdown) else wrapped(linked)
        return f"<!-- {marker} -->\n{shown}\n{end}"

    return PARTS.sub(part, f"{text}<!-- ").removesuffix("<!-- ")


def call(marker: str) -> str:
    """What the call of a marker makes. Raises BadInput for an unknown call or word."""
    name, *words = shlex.split(marker)
    if name not in CALLS:
        raise one_of("call", name, sorted(CALLS))
    pairs = dict(word.partition("=")[::2] for word in words)
    values: dict[str, Any] = {
        key: int(value) if value.isdigit() else value for key, value in pairs.items()
    }
    try:
        inspect.signature(CALLS[name]).bind(**values)
    except TypeError as error:
        raise BadInput("call", name, str(error)) from None
    return CALLS[name](**values)


def _linked(text: str, page: Path) -> str:
    """The text with links into findings/ as seen from the page."""
    return re.sub(
        r"\]\((findings/[^)]+)\)",
        lambda link: f"]({os.path.relpath(ROOT / link[1], page.parent)})",
        text,
    )


def wrapped(text: str) -> str:
    """Each line as a paragraph or a point of a list, in lines of WIDTH."""
    return "\n".join(
        textwrap.fill(
            line,
            WIDTH,
            subsequent_indent=" " * (len(line) - len(line.lstrip(" -"))),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.splitlines()
    )
