"""What of Python's syntax may be mutated, and what no test should notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator

BUILT_IN_TYPES = {"tuple", "list", "dict", "set", "frozenset", "type"}
SPEAKERS = {"print", "warn", "_warn", "debug", "info", "warning", "error", "exception"}
"""Names of functions whose arguments are words for people."""


def is_stored(node: ast.AST) -> bool:
    """Whether it is a name that gets a value."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def is_none(node: ast.expr) -> bool:
    """Whether it is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_text(node: ast.expr) -> bool:
    """Whether it is a string, formatted or not."""
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_string or isinstance(node, ast.JoinedStr)


def is_simple(test: ast.expr) -> bool:
    """Whether another kind of mutant negates the condition already."""
    return isinstance(test, ast.Compare) or (
        isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    )


def is_for_checkers(node: ast.stmt) -> bool:
    """Whether it only tells what is imported, what a type is, or what must hold."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert):
        return True
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        is_dunder = isinstance(target, ast.Name) and target.id == "__all__"
        return is_dunder or _is_alias(node.value)
    return False


def _is_alias(node: ast.expr) -> bool:
    """Whether it names a type, as `Callable[[int], str]` does."""
    if isinstance(node, ast.BinOp):
        return _is_alias(node.left)
    of = node.value if isinstance(node, ast.Subscript) else None
    return isinstance(of, ast.Name) and (of.id[:1].isupper() or of.id in BUILT_IN_TYPES)


def head(node: ast.stmt) -> int:
    """The last line of the statement, or of its head if it has a body."""
    assert node.end_lineno is not None
    if not blocks(node):
        return node.end_lineno
    of_head = (one for one in own_expressions(node) if isinstance(one, ast.expr))
    return max(node.lineno, *(one.end_lineno or 0 for one in of_head), 0)


def blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    """The statements inside, by block."""
    fields = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    handlers = [handler.body for handler in getattr(node, "handlers", [])]
    cases = [case.body for case in getattr(node, "cases", [])]
    return [block for block in (*fields, *handlers, *cases) if block]


def own_expressions(node: ast.stmt) -> list[ast.AST]:
    """The expressions of a statement that may be mutated, those of statements inside left out."""
    match node:
        case ast.FunctionDef(args=arguments):
            return [default for default in (*arguments.defaults, *arguments.kw_defaults) if default]
        case ast.ClassDef() | ast.Raise():
            return []
        case ast.AnnAssign(value=value):
            return [value] if value else []
        case ast.With(items):
            return [item.context_expr for item in items]
        case ast.Match(subject):
            return [subject]
        case _:
            return [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]


def expressions(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all that is in it, without words for people and annotations."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.Call) and _callee(node) in SPEAKERS:
        return
    yield node
    for child in ast.iter_child_nodes(node):
        is_strict = isinstance(child, ast.keyword) and child.arg == "strict"
        if not is_strict:
            yield from expressions(child)


def _callee(node: ast.Call) -> str:
    function = node.func
    return getattr(function, "attr", "") or getattr(function, "id", "")


def bounds(index: ast.expr) -> list[ast.expr]:
    """What can be shifted by one: the bounds of a slice, and indices that are computed."""
    parts = [index.lower, index.upper] if isinstance(index, ast.Slice) else [index]
    computed = ast.BinOp | ast.UnaryOp
    return [
        part
        for part in parts
        if part is not None
        and not isinstance(part, ast.Constant)
        and (isinstance(index, ast.Slice) or isinstance(part, computed))
    ]


def is_removable(node: ast.stmt, function: str, bound: set[str]) -> bool:
    """Whether the code without it may still run: not so where a name would have no value."""
    match node:
        case ast.Expr(value):
            return not isinstance(value, ast.Constant | ast.Yield)
        case ast.Assign(targets):
            names = [n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            stored = {n.id for n in names if isinstance(n.ctx, ast.Store)}
            is_first = not function.endswith("__init__")
            return bool(function) and (stored <= bound if stored else is_first)
        case ast.AugAssign() | ast.Delete() | ast.Raise():
            return True
        case ast.Return(value):
            return value is None
        case _:
            return False
