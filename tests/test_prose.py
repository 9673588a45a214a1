"""How the code and the pages are written: docstrings stand alone, a name has one home."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.markdown import DOCUMENTS, FENCE, ROOT

PACKAGES = ("trainer", "sweeps", "analysis", "bench", "findings")
CODE = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
FRAGMENT = re.compile(r"(Of|As|The same|Likewise|Ditto|Same as)\b")
"""How a docstring begins that needs another one beside it."""
MOST = 120
"""Characters of a line; a table's row may be longer."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def documented(path: Path) -> Iterator[tuple[int, str]]:
    """Line and docstring of whatever has one in a module."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, kinds) and (said := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), said


def test_a_docstring_stands_alone() -> None:
    for path in CODE:
        fragments = [(line, said) for line, said in documented(path) if FRAGMENT.match(said)]
        assert not fragments, name(path)


def test_a_class_name_has_one_home() -> None:
    trees = (ast.walk(ast.parse(path.read_text())) for path in CODE)
    homes = Counter(n.name for nodes in trees for n in nodes if isinstance(n, ast.ClassDef))
    assert {name for name, number in homes.items() if number > 1} == set()


def test_a_line_of_a_page_is_short() -> None:
    """Code, tables, pictures and the markers of generated parts are left out: each is one line."""
    for document in DOCUMENTS:
        prose = FENCE.sub("", document.read_text()).splitlines()
        lines = [line for line in prose if not line.startswith(("|", "![", "<!--"))]
        assert not [line for line in lines if len(line) > MOST], name(document)
