"""Memory for a step alone: the fp32 numbers that an optimizer makes in it and drops at its end."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import prod

from torch.optim import Optimizer

from pipegap.trainer.base.flat import LARGEST
from pipegap.trainer.optimizers.routing import MATRICES, Factory, Kind, alike, is_entrywise

Weights = Sequence[tuple[Kind, Sequence[int]]]
"""Kind and shape of each weight; a stack of matrices is one weight."""
AtOnce = Callable[[Weights], int]
"""Weights → the entries of the most of them that are stepped at once."""


def of_a_kind(weights: Weights) -> int:
    """Entries of all weights of one kind: torch's `foreach` makes lists of a whole group."""
    return _most((kind in MATRICES or kind, prod(shape)) for kind, shape in weights)


def of_a_shape(weights: Weights) -> int:
    """Entries of all matrices of one shape, which are stepped as one batch."""
    return _most((tuple(shape[-2:]), prod(shape)) for _, shape in weights)


def of_two_sides(weights: Weights) -> int:
    """Entries of all matrices of one shape, the wide ones and the tall ones in one batch."""
    return _most((tuple(sorted(shape[-2:])), prod(shape)) for _, shape in weights)


def one_matrix(weights: Weights) -> int:
    """Entries of a single matrix, also where it lies in a stack."""
    return max((prod(shape[-2:]) for _, shape in weights), default=0)


def one_vector(weights: Weights) -> int:
    """Entries of a vector that weights lie in which are stepped `alike` (`trainer.base.flat`)."""
    largest = max((prod(shape) for _, shape in weights), default=0)
    return max(largest, min(LARGEST, _most((alike(kind), prod(shape)) for kind, shape in weights)))


def drops(number: float, at_once: AtOnce) -> Callable[[Factory], Factory]:
    """Declares how many fp32 numbers a step makes and drops, per entry of what it steps `at_once`.

    Counted where most of them are alive, with the settings of the YAML and matrices whose sides are
    as 1 : 2. Of a batch of matrices the stacks of gradients and states are among them. Numbers in
    bf16 count half. Without it one is counted for every weight of a kind.
    """

    def declare(factory: Factory) -> Factory:
        factory.__dict__["drops"] = number, at_once
        return factory

    return declare


def dropped_entries(factory: Callable[..., Optimizer]) -> Callable[[Weights], int]:
    """Weights → the most fp32 numbers that the factory's optimizer makes in a step and drops.

    One that is not `entrywise` has the hidden matrices alone; AdamW beside it makes one number for
    each of the other weights.
    """
    number, at_once = getattr(factory, "drops", (1, of_a_kind))

    def entries(weights: Weights) -> int:
        own = [weight for weight in weights if is_entrywise(factory) or weight[0] in MATRICES]
        others = sum(prod(shape) for kind, shape in weights if kind not in MATRICES)
        return max(round(number * at_once(own)), 0 if is_entrywise(factory) else others)

    return entries


def _most(sizes: Iterable[tuple[Hashable, int]]) -> int:
    totals: Counter[Hashable] = Counter()
    for key, size in sizes:
        totals[key] += size
    return max(totals.values(), default=0)
