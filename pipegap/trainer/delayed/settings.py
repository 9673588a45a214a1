"""What a loop sets between its steps, for updates that are made later than their gradients came."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten

from pipegap.trainer.optimizers.state import copied, options

Options = list[dict[str, Any]]
"""Some options of each parameter group."""
TRAINED = "requires_grad"
"""The name of the option that says, of each weight of a group, whether it requires a gradient."""


class Settings:
    """Options of the groups of `optimizer`, some of which it is yet to see.

    What the loop writes counts from the gradient that comes next, and what the optimizer writes in
    its updates counts at once, for both.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.begin([])

    def begin(self, waiting: Sequence[Options]) -> None:
        """The optimizer has seen what the groups have now, and `waiting` comes next."""
        self._seen = self._now()
        self._last = reduce(_joined, waiting, self._seen)

    def written(self) -> Options:
        """What the loop has written since this was called before."""
        options_before, self._last = self._last, self._now()
        return _changes(options_before, self._last)

    def unseen(self, written_options: Options) -> Options:
        """The options that an update with `written_options` sees and the groups do not have."""
        return _changes(self._now(), _joined(self._seen, written_options))

    @contextmanager
    def seen_with(self, written_options: Options) -> Iterator[None]:
        """The groups have what the optimizer has seen, and `written_options`, while it lasts."""
        options_now, group_options = (
            self._now(),
            [options(group) for group in self._optimizer.param_groups],
        )
        self._put(_joined(self._seen, written_options))
        options_before = self._now()
        try:
            yield
        finally:
            self._seen = self._now()
            for group, of_loop in zip(self._optimizer.param_groups, group_options, strict=True):
                group.update(of_loop)
            self._put(options_now)
            self._put(_changes(options_before, self._seen))
            self._last = self._now()

    def _now(self) -> Options:
        return [
            {**copied(options(group)), TRAINED: [w.requires_grad for w in group["params"]]}
            for group in self._optimizer.param_groups
        ]

    @torch.no_grad()
    def _put(self, new_options: Options) -> None:
        """Gives the groups these options; a tensor stays the one that the loop may hold."""
        for group, by_name in zip(self._optimizer.param_groups, copied(new_options), strict=False):
            for name, value in by_name.items():
                value_now = group.get(name)
                if name == TRAINED:
                    for weight, is_trained in zip(group["params"], value, strict=False):
                        weight.requires_grad = is_trained
                elif isinstance(value_now, Tensor) and isinstance(value, Tensor):
                    value_now.copy_(value)
                else:
                    group[name] = value


def _joined(options: Options, newer_options: Options) -> Options:
    return [{**some, **more} for some, more in _pairs(options, newer_options)]


def _changes(old_options: Options, new_options: Options) -> Options:
    return [
        {name: value for name, value in new.items() if not _is_in(old, name, value)}
        for old, new in _pairs(old_options, new_options)
    ]


def _pairs(
    options: Options, other_options: Options
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The options of each group; groups may have been added since."""
    none: dict[str, Any] = {}
    return zip_longest(options, other_options, fillvalue=none)


def _is_in(options: Mapping[str, Any], name: str, value: Any) -> bool:
    if name not in options:
        return False
    leaves, structure = tree_flatten(value)
    other_leaves, of_others = tree_flatten(options[name])
    return structure == of_others and _are_equal(leaves, other_leaves)


def _are_equal(leaves: Sequence[Any], other_leaves: Sequence[Any]) -> bool:
    for leaf, other_leaf in zip(leaves, other_leaves, strict=True):
        if isinstance(leaf, Tensor) and isinstance(other_leaf, Tensor):
            if leaf.dtype != other_leaf.dtype or not torch.equal(leaf, other_leaf):
                return False
        elif leaf is not other_leaf:
            with suppress(TypeError, ValueError):  # an array is neither equal nor unequal
                if bool(leaf == other_leaf):
                    continue
            return False
    return True
