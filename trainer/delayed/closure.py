"""Whether an optimizer's `step` can do without a closure."""

import ast
import inspect
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any

from torch.optim import Optimizer

CLOSURE = "closure"
EMPTY = inspect.Parameter.empty
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def needs_arguments(optimizer: Optimizer) -> bool:
    """Whether `step()` alone must fail, of the optimizer or of one that it has others step by.

    Either its signature says so, or its text: a `step` that calls its closure and never asks
    whether there is one, but to raise an error, cannot go without.
    """
    step = inspect.unwrap(type(optimizer).step)
    [_, *parameters] = inspect.signature(step).parameters.values()
    if any(p.default is EMPTY and p.kind not in VARIADIC for p in parameters):
        return True
    inner = [each for each in vars(optimizer).values() if isinstance(each, Optimizer)]
    return _calls_unasked(step) or any(map(needs_arguments, inner))


def _calls_unasked(step: Callable[..., Any]) -> bool:
    try:
        tree = ast.parse(dedent(inspect.getsource(step)))
    except (OSError, TypeError, SyntaxError):  # there is no text to read
        return False
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    is_called = any(isinstance(call.func, ast.Name) and call.func.id == CLOSURE for call in calls)
    return is_called and not any(_names_closure(asked.test) for asked in _questions(tree))


def _questions(tree: ast.AST) -> Iterator[ast.If | ast.IfExp]:
    """The conditions in a text, but for those that only raise an error."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            yield node
        if isinstance(node, ast.If) and not isinstance(node.body[-1], ast.Raise):
            yield node


def _names_closure(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == CLOSURE for node in ast.walk(test))
