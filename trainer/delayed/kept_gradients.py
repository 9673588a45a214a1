"""The loop reads the weights that there are, and its gradients wait: applied τ steps late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn
from typing_extensions import override

from trainer.delayed.keeper import Gradient, Keeper, Options, Update, Waiting


class KeptGradients(Keeper):
    """Gradients wait until the loop's next batch must read a version that they make.

    The updates are those of `KeptWeights`, to the bit, since update t uses the options that came
    with the gradient of batch t. But they are made up to τ steps later, so that the loop's weights
    are those of τ steps before, and the last τ gradients wait for `finish`. A delay of τ takes τ
    sets of gradients, and a delay of 0 nothing.
    """

    def __init__(
        self, weights: Sequence[nn.Parameter], version: Callable[[int], int], lag: int
    ) -> None:
        super().__init__(weights, version)
        self._lag = lag
        self._waiting: deque[Gradient] = deque()
        self._made = 0

    @override
    def take(
        self, batch: int, gradient: Sequence[Tensor | None], options: Options, update: Update
    ) -> None:
        delay, following = batch - self._made, self._version(batch + 1)
        if following <= batch:  # it waits, and the loop's next backward may write to its tensors
            gradient = [None if tensor is None else tensor.detach().clone() for tensor in gradient]
        self._waiting.append(Gradient(batch, gradient, options, delay))
        self._make(following, update)

    def _make(self, version: int, update: Update) -> None:
        """Makes the updates up to `version`; the loop's own gradients stay as they are."""
        own = [weight.grad for weight in self.weights]
        while self._made < version:
            update(self._waiting.popleft())
            self._made += 1
        for weight, gradient in zip(self.weights, own, strict=True):
            weight.grad = gradient

    @override
    def show(self, weights: Sequence[Tensor]) -> None:
        """Leaves the weights as they are: the newest ones that are made."""

    @override
    def hide(self) -> None:
        pass

    @override
    def finish(self, update: Update) -> None:
        self._make(self._made + len(self._waiting), update)

    @override
    def state(self) -> list[dict[str, Tensor]]:
        unused = [
            [weight.detach().clone() for weight in self.weights]
            for _ in range(self._lag - len(self._waiting))
        ]  # see KeptWeights
        tensors_of = [*(gradient.tensors for gradient in self._waiting), *unused]
        sets = {f"waiting_{i}": tensors for i, tensors in enumerate(tensors_of)}
        return [
            {name: of.detach() for name, tensors in sets.items() if (of := tensors[i]) is not None}
            for i in range(len(self.weights))
        ]

    @property
    @override
    def waiting(self) -> Waiting:
        waiting = list(self._waiting)
        return Waiting([of.delay for of in waiting], [of.options for of in waiting])

    @override
    def restore(
        self, num_taken: int, state: Sequence[Mapping[str, Tensor]], waiting: Waiting
    ) -> None:
        self._made = num_taken - len(waiting.delays)
        self._waiting.clear()
        for i, (delay, options) in enumerate(zip(*waiting, strict=True)):
            tensors = [None if (g := s.get(f"waiting_{i}")) is None else g.clone() for s in state]
            self._waiting.append(Gradient(self._made + i, tensors, options, delay))
