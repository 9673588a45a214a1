"""Does nothing about delay; the interface that every correction implements."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from torch import Tensor

State = Mapping[str, Tensor]
"""What a correction remembers of one weight, by name."""


class NoCorrection:
    """The plain delayed update, W(t+1) = W(t) − u_t.

    Made for one stage: `num_updates` is T, and `lags[i]` says how many versions behind the newest
    weight i is read while the delay is on. For every batch t the stage calls `gradient`, then
    `apply`, `ahead` and `look_ahead`, each with one tensor per weight. `delays[i]` is the counted
    delay of weight i, in updates; but for `look_ahead`, no weight whose delay is 0 may be changed.
    """

    needs_update: ClassVar[bool] = False
    """Whether `apply` or `ahead` reads the update u_t, for which the stage has to copy W(t)."""

    reads_ahead: ClassVar[bool] = False
    """Whether late reads of a version see what `ahead` returned for it."""

    looks_ahead: ClassVar[bool] = False
    """Whether `look_ahead` does anything, and so the correction acts without a delay too."""

    @property
    def moves_weights(self) -> bool:
        """Whether `apply` does anything."""
        return type(self).apply is not NoCorrection.apply

    def __init__(self, num_updates: int, lags: Sequence[int]) -> None:
        self.num_updates, self.lags = num_updates, lags

    def gradient(
        self,
        gradients: Sequence[Tensor],  # fp32, each of its weight's shape
        weights: Sequence[Tensor],  # W(t), fp32
        delays: Sequence[int],
    ) -> None:
        """Changes in place the raw gradients of batch t, averaged and not yet clipped."""

    def look_back(self, delays: Sequence[int]) -> None:
        """Called before `gradient` on a GPU: what is sent to the host here is there at `apply`."""

    def lr_factor(self, update: int, delay: int) -> float:
        """Factor on the learning rate of weights whose gradient is `delay` updates old."""
        return 1.0

    def apply(
        self,
        weights: Sequence[Tensor],  # W(t) − u_t, fp32
        update: Sequence[Tensor],  # u_t, each of its weight's shape
        delays: Sequence[int],
    ) -> None:
        """Turns `weights` from W(t) − u_t into W(t+1), in place.

        `update` is u_t, the whole change that the optimizer made, learning rate and decay included.
        It may be kept but must not be changed before the next update. It may be empty if
        `needs_update` is false.
        """

    def ahead(
        self,
        weights: Sequence[Tensor],  # W(t+1), which must not be changed
        update: Sequence[Tensor],  # u_t, as in `apply`
    ) -> Sequence[Tensor]:
        """The tensors that late reads of version t + 1 see, if the correction `reads_ahead`."""
        return weights

    def look_ahead(
        self,
        weights: Sequence[Tensor],  # W(t+1)
        update: int,
        rate: float,
    ) -> None:
        """Turns `weights` into those to read and to step from next, in place, after update number
        `update`, whose learning rate was `rate` times its peak."""

    def evaluated(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """W(t+1) itself: the tensors to evaluate and export in place of `weights`."""
        return weights

    def graph_factor(self) -> Callable[[int], float] | None:
        """Delay of a weight → λ of the Error Feedback with a lag of 1 that `apply` is, which
        `compile=update` then makes in a graph; None if it is another. It counts of the very class
        that defines it, and not of those that derive from that class."""
        return None

    def num_buffers(self, lag: int) -> int:
        """The most fp32 tensors of its size that `state` holds for a weight with this lag."""
        return 0

    def num_leaves_ahead(self, lag: int) -> int:
        """How many leaves for late reads a weight with this lag has in addition to its versions."""
        return lag + 1 if self.reads_ahead and lag else 0

    def state(self) -> list[State]:
        """What a checkpoint must hold: for each weight, tensors by name."""
        return [{} for _ in self.lags]

    def restore(self, state: Sequence[State]) -> None:
        """Takes back what `state` returned."""
