"""The mutants of a source file: every small mistake of a kind, each as one edit of the text.

Left out is what no test should notice: annotations, assertions, messages (what is printed, warned,
or put into an exception or an f-string), `__all__`, code for type checkers only, and the `strict`
of `zip`, which checks what callers promise.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.mutations import syntax

ARITHMETIC = {
    **{"+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "//": ["*"], "%": ["//"], "**": ["*"]},
    **{"|": ["&"], "&": ["|"]},
}
COMPARISON = {
    **{"<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"]},
    **{"==": ["!="], "!=": ["=="], "is": ["is not"], "is not": ["is"]},
    **{"in": ["not in"], "not in": ["in"]},
}
FUNCTIONS = {"max": "min", "min": "max", "any": "all", "all": "any"}
Span = tuple[int, int]
"""Where a piece of the text starts and ends, in bytes."""
Edit = tuple[str, Span, str]
"""Kind, what it replaces, and by what."""


@dataclass(frozen=True)
class Mutant:
    """One edit of a file, and where it is."""

    path: str
    """Of the file, from the root of the repository."""
    function: str
    """The class and function that it is in; empty at the top of a module."""
    kind: str
    lines: range
    """Of the statement's head: a test that executes none of them cannot notice the mutant."""
    on_import: bool
    """Whether these lines run when the module is imported, before any test."""
    old: str
    """The changed lines as they were, without their indentation."""
    new: str
    nth: int
    """Tells edits of a function apart that look alike, from 0."""
    source: bytes
    """The file with the edit."""

    @property
    def key(self) -> str:
        """Its name, which stays when other functions change."""
        return "\0".join((self.path, self.function, self.old, self.new, str(self.nth)))

    def diff(self, original: bytes) -> str:
        """The edit as a unified diff."""
        before, after = (
            text.decode().splitlines(keepends=True) for text in (original, self.source)
        )
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}", n=1))


def mutants(path: Path, root: Path) -> list[Mutant]:
    """All mutants of the file at `path`, in the order of its text."""
    source = path.read_bytes()
    place = str(path.relative_to(root))
    seen: Counter[tuple[str, str, str]] = Counter()
    made = []
    for site, (kind, (start, end), text) in _Walk(source).edits():
        changed = source[:start] + text.encode() + source[end:]
        if not _compiles(changed):
            continue
        old, new = _lines(source, start, end), _lines(changed, start, start + len(text.encode()))
        nth = seen[site.function, old, new]
        seen[site.function, old, new] += 1
        made.append(
            Mutant(place, site.function, kind, site.lines, site.on_import, old, new, nth, changed)
        )
    return made


def _compiles(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _lines(source: bytes, start: int, end: int) -> str:
    """The whole lines that hold a piece of the text, without their indentation."""
    first = source.rfind(b"\n", 0, start) + 1
    last = source.find(b"\n", end)
    lines = source[first : last if last >= 0 else len(source)].decode().splitlines()
    return "\n".join(line.strip() for line in lines)


@dataclass(frozen=True)
class _Site:
    """Where in the file a node is."""

    function: str
    lines: range
    on_import: bool


class _Walk:
    """Walks the syntax tree and yields the edits of each node."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def edits(self) -> Iterator[tuple[_Site, Edit]]:
        """(place, edit), each edit once."""
        yield from self._block(ast.parse(self._source).body, _Site("", range(0), True))

    def _block(self, body: Sequence[ast.stmt], at: _Site) -> Iterator[tuple[_Site, Edit]]:
        bound: set[str] = set()
        for statement in body:
            yield from self._statement(statement, at, bound)
            bound |= {n.id for n in ast.walk(statement) if syntax.is_stored(n)}  # type: ignore[attr-defined]

    def _statement(
        self, node: ast.stmt, at: _Site, bound: set[str]
    ) -> Iterator[tuple[_Site, Edit]]:
        if syntax.is_for_checkers(node):
            return
        head = syntax.head(node)
        site = _Site(at.function, range(node.lineno, head + 1), at.on_import)
        inner = site
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{at.function}.{node.name}".lstrip(".")
            is_class = isinstance(node, ast.ClassDef)
            inner = _Site(name, range(0), at.on_import and is_class)
        for edit in self._of_statement(node, at.function, bound):
            yield site, edit
        for edit in self._of_expressions(syntax.own_expressions(node)):
            yield site, edit
        for body in syntax.blocks(node):
            yield from self._block(body, inner)

    def _of_statement(self, node: ast.stmt, function: str, bound: set[str]) -> Iterator[Edit]:
        span = self._span(node)
        if syntax.is_removable(node, function, bound):
            yield "removed statement", span, "pass"
        if isinstance(node, ast.Return) and node.value and not syntax.is_none(node.value):
            yield "returned None", span, "return None"
        elif isinstance(node, ast.Break):
            yield "loop", span, "continue"
        elif isinstance(node, ast.Continue):
            yield "loop", span, "break"
        elif isinstance(node, ast.AugAssign):
            operator = self._between(node.target, node.value)
            sign = self._source[slice(*operator)].strip().removesuffix(b"=").decode()
            for other in ("", *ARITHMETIC.get(sign, [])):
                yield "assignment", operator, f" {other}= "
        elif isinstance(node, ast.If) and not syntax.is_simple(node.test):
            condition = self._text(node.test)
            yield "negation", self._span(node.test), f"not ({condition})"

    def _of_expressions(self, nodes: Iterable[ast.AST]) -> Iterator[Edit]:
        for top in nodes:
            for node in syntax.expressions(top):
                yield from self._of_expression(node)

    def _of_expression(self, node: ast.AST) -> Iterator[Edit]:  # noqa: PLR0912 - one case per kind
        match node:
            case ast.BinOp(left, _, right) if not (syntax.is_text(left) or syntax.is_text(right)):
                yield from self._operator("arithmetic", left, right, ARITHMETIC)
            case ast.Compare(left, _, others):
                for one, other in zip([left, *others], others, strict=False):
                    yield from self._operator("comparison", one, other, COMPARISON)
            case ast.BoolOp(_, values):
                swap = {"and": ["or"], "or": ["and"]}
                for one, other in pairwise(values):
                    yield from self._operator("boolean", one, other, swap)
            case ast.UnaryOp(ast.Not(), operand):
                yield "negation", self._span(node), f"({self._text(operand)})"
            case ast.UnaryOp(ast.USub(), operand):
                yield "sign", self._span(node), f"({self._text(operand)})"
            case ast.IfExp(test) if not syntax.is_simple(test):
                yield "negation", self._span(test), f"not ({self._text(test)})"
            case ast.Constant(bool() as value):
                yield "constant", self._span(node), str(not value)
            case ast.Constant(int() | float() as value):
                yield "constant", self._span(node), repr(value + 1)
            case ast.Subscript(_, index):
                for bound in syntax.bounds(index):
                    yield "index", self._span(bound), f"({self._text(bound)}) + 1"
            case ast.Call(function, arguments):
                yield from self._of_call(function, arguments)

    def _of_call(self, function: ast.expr, arguments: Sequence[ast.expr]) -> Iterator[Edit]:
        name = function.id if isinstance(function, ast.Name) else ""
        if name in FUNCTIONS:
            yield "function", self._span(function), FUNCTIONS[name]
        if name == "range":
            for argument in arguments:
                if not isinstance(argument, ast.Constant):
                    yield "index", self._span(argument), f"({self._text(argument)}) + 1"
        if len(arguments) > 1 and name not in {*FUNCTIONS, "isinstance"}:
            one, other = arguments[:2]
            texts = self._text(one), self._text(other)
            if texts[0] != texts[1] and not any(isinstance(a, ast.Starred) for a in (one, other)):
                between = self._source[slice(*self._between(one, other))].decode()
                whole = self._span(one)[0], self._span(other)[1]
                yield "swapped arguments", whole, f"{texts[1]}{between}{texts[0]}"

    def _operator(
        self, kind: str, left: ast.expr, right: ast.expr, others: dict[str, list[str]]
    ) -> Iterator[Edit]:
        start, end = self._between(left, right)
        text = self._source[start:end].decode()
        found = re.search(r"not\s+in|is\s+not|\w+|[-+*/%|&<>=!@^]+", text)
        if found is None:
            return
        offset = len(text[: found.start()].encode())
        span = start + offset, start + offset + len(found[0].encode())
        for other in others.get(" ".join(found[0].split()), []):
            yield kind, span, other

    def _between(self, left: ast.expr, right: ast.expr) -> Span:
        return self._span(left)[1], self._span(right)[0]

    def _span(self, node: ast.AST) -> Span:
        at: ast.expr = node  # type: ignore[assignment]
        assert at.end_lineno is not None
        assert at.end_col_offset is not None
        start = self._starts[at.lineno - 1] + at.col_offset
        return start, self._starts[at.end_lineno - 1] + at.end_col_offset

    def _text(self, node: ast.AST) -> str:
        return self._source[slice(*self._span(node))].decode()
