"""Sums of a batch's gradients over microbatches and replicas, in the dtype of the master."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pipegap.trainer.base.flat import Flat, Vector, wholes


class Sums:
    """The sum of each replica's gradients, of weights that lie as `masters` do."""

    def __init__(self, masters: Flat) -> None:
        self._layout, self._dtype = masters.layout, masters.wholes[0].dtype
        self._of_replicas: dict[int, Sequence[Tensor]] = {}

    def add(self, replica: int, gradients: Sequence[Tensor]) -> None:
        """Adds a microbatch's gradients.

        The first ones become the sum itself. In another dtype they are copied to where a step by
        vectors needs no further copy, and later ones are added vector by vector: torch would add
        them tensor by tensor, and on a GPU the time goes by the number of calls.
        """
        total, vectors = self._of_replicas.get(replica), self._layout.vectors
        are_alike = all(gradient.dtype == self._dtype for gradient in gradients)
        if total is None and are_alike:
            self._of_replicas[replica] = list(gradients)
        elif total is None:
            joined = [_joined(vector, gradients).to(self._dtype) for vector in vectors]
            self._of_replicas[replica] = Flat(self._layout, joined)
        elif isinstance(total, Flat):
            for whole, vector in zip(total.wholes, vectors, strict=True):
                whole.add_(_joined(vector, gradients))
        else:
            torch._foreach_add_(list(total), list(gradients))

    def take(self) -> Sequence[Tensor]:
        """Returns the sum over all replicas, and begins anew."""
        replicas, self._of_replicas = self._of_replicas, {}
        # In a fixed order, so that a run repeats to the bit.
        total = replicas.pop(0)
        for replica in sorted(replicas):
            torch._foreach_add_(*wholes(total, replicas[replica]))
        return total


def _joined(vector: Vector, gradients: Sequence[Tensor]) -> Tensor:
    """A copy of the gradients in this vector, in the widest of their dtypes."""
    return vector.joined([gradients[i] for i in vector.numbers])
