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
        before, self._last = self._last, self._now()
        return _changes(before, self._last)

    def unseen(self, written: Options) -> Options:
        """The options that an update with these `written` sees and the groups do not have."""
        return _changes(self._now(), _joined(self._seen, written))

    @contextmanager
    def seen_with(self, written: Options) -> Iterator[None]:
        """The groups have what the optimizer has seen and these `written` while it lasts."""
        own, held = self._now(), [options(group) for group in self._optimizer.param_groups]
        self._put(_joined(self._seen, written))
        before = self._now()
        try:
            yield
        finally:
            self._seen = self._now()
            for group, of_loop in zip(self._optimizer.param_groups, held, strict=True):
                group.update(of_loop)
            self._put(own)
            self._put(_changes(before, self._seen))
            self._last = self._now()

    def _now(self) -> Options:
        return [
            {**copied(options(group)), TRAINED: [w.requires_grad for w in group["params"]]}
            for group in self._optimizer.param_groups
        ]

    @torch.no_grad()
    def _put(self, given: Options) -> None:
        """Gives the groups these options; a tensor stays the one that the loop may hold."""
        for group, by_name in zip(self._optimizer.param_groups, copied(given), strict=False):
            for name, value in by_name.items():
                own = group.get(name)
                if name == TRAINED:
                    for weight, is_trained in zip(group["params"], value, strict=False):
                        weight.requires_grad = is_trained
                elif isinstance(own, Tensor) and isinstance(value, Tensor):
                    own.copy_(value)
                else:
                    group[name] = value


def _joined(options: Options, others: Options) -> Options:
    return [{**some, **more} for some, more in _pairs(options, others)]


def _changes(before: Options, after: Options) -> Options:
    return [
        {name: value for name, value in new.items() if not _is_in(old, name, value)}
        for old, new in _pairs(before, after)
    ]


def _pairs(options: Options, others: Options) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The options of each group; groups may have been added since."""
    none: dict[str, Any] = {}
    return zip_longest(options, others, fillvalue=none)


def _is_in(options: Mapping[str, Any], name: str, value: Any) -> bool:
    if name not in options:
        return False
    leaves, structure = tree_flatten(value)
    others, of_others = tree_flatten(options[name])
    return structure == of_others and _are_equal(leaves, others)


def _are_equal(leaves: Sequence[Any], others: Sequence[Any]) -> bool:
    for leaf, other in zip(leaves, others, strict=True):
        if isinstance(leaf, Tensor) and isinstance(other, Tensor):
            if leaf.dtype != other.dtype or not torch.equal(leaf, other):
                return False
        elif leaf is not other:
            with suppress(TypeError, ValueError):  # an array is neither equal nor unequal
                if bool(leaf == other):
                    continue
            return False
    return True
