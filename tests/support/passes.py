"""Passes over memory of a part of an update, by the operations that torch dispatches.

A pass reads or writes as many bytes as the weights have in fp32. A call on a list of tensors counts
once; views do not count.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.stages import update
from tests.support.steps import executor, resolved

NUM_BEFORE = 3
"""Updates before the one that is counted: then there are states, and something to correct."""
NOT_READ = {"copy_", "_foreach_copy_", "zero_", "fill_"}
"""Operations that overwrite their first argument."""


class CountedBytes(TorchDispatchMode):
    """Counts bytes that operations read, write and make new, while `is_counting`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_counting = False
        self.read = self.written = self.made = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given, schema = dict(kwargs or {}), func._schema
        result = func(*args, **given)
        outputs = [output.alias_info for output in schema.returns]
        if not self.is_counting or any(alias and not alias.is_write for alias in outputs):
            return result  # a view
        given.update(zip((argument.name for argument in schema.arguments), args, strict=False))
        for argument in schema.arguments:
            size = _bytes(given.get(argument.name))
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            is_read = not is_written or func.overloadpacket.__name__ not in NOT_READ
            self.written += size * is_written
            self.read += size * is_read
        made = 0 if any(outputs) else _bytes(result)
        self.written += made
        self.made += made
        return result

    @contextmanager
    def during(self, owner: Any, method: str, is_counted: bool) -> Iterator[None]:
        """Within calls of `owner.method`, operations count or do not, while the context lasts."""
        plain: Callable[..., Any] = getattr(owner, method)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            outer, self.is_counting = self.is_counting, is_counted
            try:
                return plain(*args, **kwargs)
            finally:
                self.is_counting = outer

        with patch.object(owner, method, wrapped):
            yield


def _bytes(nest: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(nest) if isinstance(leaf, Tensor))


def passes_of_versions(words: Sequence[str]) -> list[float]:
    """Passes that read, that write, and of these into new tensors, of versions and correction."""
    counts = CountedBytes()
    with (
        counts.during(Emulated, "_update", True),
        counts.during(Emulated, "_reduce", False),
        counts.during(update, "step", False),
    ):
        trained = executor(resolved(words))  # which binds its methods
        trained.run(0, NUM_BEFORE, lambda update: None)
        with counts:
            trained.run(NUM_BEFORE, NUM_BEFORE + 1, lambda update: None)
    weights = sum(weight.nbytes for s in trained.stages for weight in s.versions.master)
    return [size / weights for size in (counts.read, counts.written, counts.made)]
