"""How optimizers step a block of weights, as functions that a graph can be made of.

A rule makes the step of a library's optimizer from the same state and the same options, with other
rounding; tests hold it to the library. Whatever changes from update to update or from trial to
trial, such as a learning rate or a decay, is an entry of `numbers`, so that one graph serves all
trials of a model. What is left are the fields of a rule, which choose the graph.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

Group = Mapping[str, Any]
Key = tuple[str | int, ...]
"""Where a tensor lies in the state of a weight: a key, and for a list of tensors an index."""


class Rule(ABC):
    """The step of one kind of weight by one optimizer.

    `keys` say which tensors of a weight's state the graph reads and changes, in order. They are
    stacked like the weights.
    """

    keys: ClassVar[tuple[Key, ...]]

    @abstractmethod
    def numbers(self, group: Group, step: int) -> list[float]:
        """What `stepped` gets as `numbers`; `step` is the number of this step, from 1."""

    @abstractmethod
    def stepped(
        self,
        weights: Tensor,  # [members, *shape], not changed
        gradients: Tensor,  # of the same shape, clipped
        state: Sequence[Tensor],  # one per key, [members, …], changed in place
        numbers: Sequence[Tensor],  # scalars
    ) -> Tensor:
        """Returns the stepped weights."""

    def done(self, group: Group, state: Sequence[Tensor]) -> int:
        """How many steps the optimizer has made; the graph's `state` is given."""
        return int(group["step"])

    def renew(self, group: Group, step: int, state: Sequence[Tensor]) -> None:  # noqa: B027
        """Does after a step what is due only now and then, in place and without a graph.

        Most rules have nothing to do.
        """


def corrected(decay: float, step: int) -> float:
    """What divides an average that started from zero, after `step` steps."""
    return 1 - decay**step


def norms(blocks: Tensor) -> Tensor:
    """The Frobenius norm of each matrix [members, rows, columns], as [members, 1, 1]."""
    return (blocks * blocks).sum((-2, -1), keepdim=True).sqrt()
