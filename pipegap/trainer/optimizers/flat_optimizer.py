"""An optimizer that steps every entry by itself, on the few vectors that its weights lie in.

It computes the same numbers in fewer calls: entries of one vector are stepped alike.
"""

from collections.abc import Sequence
from functools import partial
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.base.flat import Layout, Vector, storage
from pipegap.trainer.optimizers.averaging import averages, evaluated
from pipegap.trainer.optimizers.routing import Make, Parameters, alike
from pipegap.trainer.optimizers.state import State, options, replace_options


def flattened(make: Make) -> Make:
    """Makes the optimizers of `make`, which step entries by themselves, step whole vectors."""
    return lambda parameters: FlatOptimizer(make, parameters)


class FlatOptimizer(Optimizer):
    """Steps the optimizer of `make` on the vectors that the weights of `parameters` lie in.

    `make` returns an optimizer that steps every entry by itself. The weights in one storage that it
    steps `alike` are a vector (`trainer.base.flat`), which may lie elsewhere at every step. The
    state is seen by weight.
    """

    def __init__(self, make: Make, parameters: Parameters) -> None:
        self._weights = weights = [weight for _, weight in parameters]
        keys = [(alike(kind), storage(weight)) for kind, weight in parameters]
        layout = Layout([weight.shape for weight in weights], keys)
        self._vectors: dict[nn.Parameter, tuple[Vector, list[nn.Parameter]]] = {}
        for vector in layout.vectors:
            members = [weights[i] for i in vector.numbers]
            whole = nn.Parameter(_beneath(vector, members), requires_grad=False)
            self._vectors[whole] = vector, members
        kinds = [parameters[vector.numbers[0]][0] for vector in layout.vectors]
        self._inner = make(list(zip(kinds, self._vectors, strict=True)))
        # Without torch's hooks and profiler around a step: both may take as long as a small step.
        self._step = partial(unwrap(type(self._inner).step), self._inner)
        self._by_weight: dict[Tensor, State] | None = None
        groups = [
            {**options(group), "params": [w for p in group["params"] for w in self._vectors[p][1]]}
            for group in self._inner.param_groups
        ]
        super().__init__(groups, {})

    @property
    def state(self) -> Any:
        """Weight → its state, whose tensors are parts of the inner optimizer's."""
        if self._by_weight is None:
            self._by_weight = {}
            for whole, (vector, weights) in self._vectors.items():
                state = self._inner.state.get(whole, {})
                columns = {key: _parts(value, vector, whole) for key, value in state.items()}
                for i, weight in enumerate(weights):
                    self._by_weight[weight] = {key: of[i] for key, of in columns.items()}
        return self._by_weight

    @state.setter
    def state(self, by_weight: dict[Tensor, State]) -> None:
        self._by_weight = by_weight

    @torch.no_grad()
    def evaluation_weights(self) -> dict[Tensor, Tensor]:
        """Weight → tensor to evaluate in its place; most often the weight itself."""
        if not averages(self._inner):
            return {weight: weight for _, weights in self._vectors.values() for weight in weights}
        self._take_state()
        self._lay()
        vectors_shown = evaluated(self._inner, list(self._vectors))
        return {
            weight: part
            for (vector, weights), whole in zip(self._vectors.values(), vectors_shown, strict=True)
            for weight, part in zip(weights, vector.parts(whole), strict=True)
        }

    @override
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.step_by([weight.grad for weight in self._weights])

    @torch.no_grad()
    def step_by(self, gradients: Sequence[Tensor | None]) -> None:
        """Steps by one gradient per weight, in the order of the parameters.

        All weights of a vector have a gradient, or none of them; then the vector stays as it is.
        """
        self._take_state()
        self._lay()
        for whole, (vector, _) in self._vectors.items():
            gradients_there = [g for i in vector.numbers if (g := gradients[i]) is not None]
            whole.grad = vector.whole(gradients_there) if gradients_there else None
        for outer_group, inner_group in zip(
            self.param_groups, self._inner.param_groups, strict=True
        ):
            replace_options(inner_group, outer_group)
        self._step()
        for outer_group, inner_group in zip(
            self.param_groups, self._inner.param_groups, strict=True
        ):
            replace_options(outer_group, inner_group)
        for whole in self._vectors:
            whole.grad = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state, self.param_groups = state["state"], state["param_groups"]
        self._inner.state.clear()  # two states at once might not fit

    def _lay(self) -> None:
        """Lays the vectors where the weights lie now."""
        for whole, (vector, weights) in self._vectors.items():
            whole.data = _beneath(vector, weights)

    def _take_state(self) -> None:
        """Gives the inner optimizer the state by weight, if anybody has seen or replaced it."""
        if self._by_weight is None:
            return
        for whole, (vector, weights) in self._vectors.items():
            states = [self._by_weight.pop(weight, {}) for weight in weights]
            self._inner.state[whole] = {
                key: _whole([state[key] for state in states], vector, weights[0])
                for key in states[0]
            }
        self._by_weight = None


def _beneath(vector: Vector, weights: Sequence[Tensor]) -> Tensor:
    whole = vector.beneath(weights)
    assert whole is not None, "weights that are stepped alike do not lie in order"
    return whole.data


def _is_by_entry(value: Any, weight: Tensor) -> bool:
    """Whether what is kept of a weight has a number for each of its entries."""
    return isinstance(value, Tensor) and value.shape == weight.shape


def _parts(value: Any, vector: Vector, whole: Tensor) -> Sequence[Any]:
    """What is kept of each weight, from what is kept of their vector `whole`."""
    return vector.parts(value) if _is_by_entry(value, whole) else [value] * len(vector.numbers)


def _whole(values: Sequence[Any], vector: Vector, first: Tensor) -> Any:
    """What is kept of a vector, from what is kept of its weights, the `first` and the others."""
    return vector.whole(values) if _is_by_entry(values[0], first) else values[0]
