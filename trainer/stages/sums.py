"""Sums of a batch's gradients over microbatches and replicas, in the dtype of the master."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.base.flat import Flat, Vector


class Sums:
    """The sum of each replica's gradients, of weights that lie as `masters` do."""

    def __init__(self, masters: Flat) -> None:
        self._layout, self._dtype = masters.layout, masters.wholes[0].dtype
        self._of_replicas: dict[int, list[Tensor]] = {}

    def add(self, replica: int, gradients: Sequence[Tensor]) -> None:
        """Adds a microbatch's gradients.

        The first ones become the sum itself. In another dtype they are copied to where a step by
        vectors needs no further copy, and later ones are added vector by vector: torch would add
        them tensor by tensor, and on a GPU the time goes by the number of calls.
        """
        is_first = replica not in self._of_replicas
        if all(gradient.dtype == self._dtype for gradient in gradients):
            if is_first:
                self._of_replicas[replica] = list(gradients)
            else:
                torch._foreach_add_(self._of_replicas[replica], list(gradients))
        elif is_first:
            wholes = [_joined(vector, gradients) for vector in self._layout.vectors]
            self._of_replicas[replica] = self._layout.parts([w.to(self._dtype) for w in wholes])
        else:
            for vector in self._layout.vectors:
                whole = vector.beneath([self._of_replicas[replica][i] for i in vector.numbers])
                assert whole is not None
                whole.add_(_joined(vector, gradients))

    def take(self) -> list[Tensor]:
        """Returns the sum over all replicas, and begins anew."""
        replicas, self._of_replicas = self._of_replicas, {}
        # In a fixed order, so that a run repeats to the bit.
        total = replicas.pop(0)
        for replica in sorted(replicas):
            torch._foreach_add_(total, replicas[replica])
        return total


def _joined(vector: Vector, gradients: Sequence[Tensor]) -> Tensor:
    """A copy of the gradients in this vector, in the widest of their dtypes."""
    return vector.joined([gradients[i] for i in vector.numbers])
