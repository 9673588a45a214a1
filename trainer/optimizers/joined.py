"""An optimizer that steps every entry by itself, on the few vectors that its weights lie in.

It computes the same numbers in fewer calls: entries of one vector are stepped alike.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from trainer.optimizers.averaging import Averages
from trainer.optimizers.routing import Kind, Parameters
from trainer.optimizers.sharded import Make
from trainer.optimizers.state import Observer, State, options, replace_options


def joined(make: Make) -> Make:
    """Makes the optimizers of `make`, which step entries by themselves, step whole vectors."""
    return lambda parameters: Joined(make, parameters)


class Vector:
    """The memory from the first to the last of `weights`, which lie in one storage, in order."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.weights, first = weights, weights[0]
        self._first = first.data_ptr()
        self._ends = [self._place(w) + w.numel() * w.itemsize for w in weights]
        self.size = self._ends[-1] // first.itemsize
        self._places = [self._place(weight) for weight in weights]
        starts = [place // first.itemsize for place in self._places]
        self._cuts = [
            n
            for (start, after), weight in zip(pairwise([*starts, self.size]), weights, strict=True)
            for n in (weight.numel(), after - start - weight.numel())
        ]

    def _place(self, tensor: Tensor) -> int:
        return tensor.data_ptr() - self._first

    def whole(self, tensors: Sequence[Tensor]) -> Tensor:
        """A tensor per weight as one vector: their own memory if they lie there as the weights."""
        first = tensors[0]
        start = first.data_ptr()
        holds = first.untyped_storage().nbytes() // first.itemsize - first.storage_offset()
        if holds >= self.size and [t.data_ptr() - start for t in tensors] == self._places:
            return first.as_strided((self.size,), (1,))
        copy = first.new_zeros(self.size)
        torch._foreach_copy_(self.parts(copy), list(tensors))
        return copy

    def parts(self, whole: Tensor) -> list[Tensor]:
        """The parts of a vector, each of its weight's shape."""
        parts = whole.split_with_sizes(self._cuts)[::2]
        return [part.view(w.shape) for part, w in zip(parts, self.weights, strict=True)]


class Joined(Optimizer):
    """Steps the optimizer of `make` on the vectors that the weights of `parameters` lie in.

    `make` returns an optimizer that steps every entry by itself. Weights of one kind in one storage
    are a vector, which must stay as it is, wherever it lies. The state is seen by weight.
    """

    def __init__(self, make: Make, parameters: Parameters) -> None:
        members: dict[tuple[Kind, int], list[nn.Parameter]] = {}
        for kind, weight in sorted(parameters, key=lambda of: of[1].data_ptr()):
            members.setdefault((kind, weight.untyped_storage().data_ptr()), []).append(weight)
        self._vectors = {
            nn.Parameter(vector.whole(vector.weights), requires_grad=False): vector
            for vector in map(Vector, members.values())
        }
        kinds = [kind for kind, _ in members]
        self._inner = make(list(zip(kinds, self._vectors, strict=True)))
        self._by_weight: dict[Tensor, State] | None = None
        groups = [
            {
                **options(group),
                "params": [w for whole in group["params"] for w in self._vectors[whole].weights],
            }
            for group in self._inner.param_groups
        ]
        super().__init__(groups, {})

    @property
    def state(self) -> Any:
        """Weight → its state, whose tensors are parts of the inner optimizer's."""
        if self._by_weight is None:
            self._by_weight = {}
            for whole, vector in self._vectors.items():
                state = self._inner.state.get(whole, {})
                columns = {key: _parts(value, whole, vector) for key, value in state.items()}
                for i, weight in enumerate(vector.weights):
                    self._by_weight[weight] = {key: of[i] for key, of in columns.items()}
        return self._by_weight

    @state.setter
    def state(self, by_weight: dict[Tensor, State]) -> None:
        self._by_weight = by_weight

    @property
    def observe_every(self) -> int | None:
        """Updates between observations of the curvature; None if the inner optimizer wants none."""
        return self._inner.observe_every if isinstance(self._inner, Observer) else None

    def observe(self, gradients: Mapping[Tensor, Tensor]) -> None:
        """Shows the inner optimizer the gradients of its vectors."""
        assert isinstance(self._inner, Observer)
        self._take_state()
        vectors = self._vectors.items()
        self._inner.observe({p: of.whole([gradients[w] for w in of.weights]) for p, of in vectors})

    @torch.no_grad()
    def evaluation_weights(self) -> dict[Tensor, Tensor]:
        """Weight → tensor to evaluate in its place; most often the weight itself."""
        if not isinstance(self._inner, Averages):
            return {weight: weight for of in self._vectors.values() for weight in of.weights}
        self._take_state()
        self._lay()
        averages = self._inner.evaluation_weights()
        return {
            weight: part
            for whole, vector in self._vectors.items()
            for weight, part in zip(vector.weights, vector.parts(averages[whole]), strict=True)
        }

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._take_state()
        self._lay()
        for whole, vector in self._vectors.items():
            gradients = [weight.grad for weight in vector.weights if weight.grad is not None]
            whole.grad = vector.whole(gradients) if gradients else None
        for mine, theirs in zip(self.param_groups, self._inner.param_groups, strict=True):
            replace_options(theirs, mine)
        self._inner.step()
        for mine, theirs in zip(self.param_groups, self._inner.param_groups, strict=True):
            replace_options(mine, theirs)
        for whole in self._vectors:
            whole.grad = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state, self.param_groups = state["state"], state["param_groups"]

    def _lay(self) -> None:
        """Lays the vectors where the weights lie now."""
        for whole, vector in self._vectors.items():
            whole.data = vector.whole(vector.weights).data
            assert whole.data_ptr() == vector.weights[0].data_ptr()

    def _take_state(self) -> None:
        """Gives the inner optimizer the state by weight, if anybody has seen or replaced it."""
        if self._by_weight is None:
            return
        for whole, vector in self._vectors.items():
            states = [self._by_weight.get(weight, {}) for weight in vector.weights]
            self._inner.state[whole] = {
                key: _whole([state[key] for state in states], vector) for key in states[0]
            }
        self._by_weight = None


def _parts(value: Any, whole: Tensor, vector: Vector) -> Sequence[Any]:
    """The parts of what is kept of a vector; a number counts for each of its weights."""
    is_kept_by_entry = isinstance(value, Tensor) and value.shape == whole.shape
    return vector.parts(value) if is_kept_by_entry else [value] * len(vector.weights)


def _whole(values: Sequence[Any], vector: Vector) -> Any:
    is_kept_by_entry = isinstance(values[0], Tensor) and values[0].shape == vector.weights[0].shape
    return vector.whole(values) if is_kept_by_entry else values[0]
