"""What others do about delay: a Taylor expansion of the gradient (DC-ASGD), gradients at predicted
weights (SAPipe, XPipe, SpecTrain), a smaller learning rate (PipeMare)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Interval
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.corrections.none import NoCorrection, Past, State, Tensors


class Taylor(NoCorrection):
    """g̃ = g + λ D ⊙ (W(t) − W(version)), before clip and optimizer (Zheng et al., 1609.08326).

    λ is `coefficient`. D stands for the diagonal of the Hessian: g ⊙ g, which is the paper's
    DC-ASGD-c; or, with `decay` > 0, the exponential average of g ⊙ g, which starts from the first
    value. (The paper's DC-ASGD-a differs: it divides λ by the root of such an average.)
    The term is of order g², so λ must be of order 1/‖g‖ at least: sweep it in decades, and read
    ‖g̃ − g‖/‖g‖ (`gradient_change` of the diagnostics) before saying that it does not help.
    """

    def __init__(
        self,
        num_updates: int,
        lags: Sequence[int],
        *,
        coefficient: Annotated[float, Ge(0)],
        decay: Annotated[float, Interval(ge=0, lt=1)],
    ) -> None:
        super().__init__(num_updates, lags)
        self.coefficient, self.decay = coefficient, decay
        self._weights = Past("weight", lags)
        self._diagonal: list[Tensor] = []

    @override
    def gradient(self, gradients: Tensors, weights: Tensors, delays: Sequence[int]) -> None:
        diagonal = self._curvature(gradients)
        late = [i for i, delay in enumerate(delays) if delay > 0]  # the weights to correct
        if late:
            read_weights = [self._weights.get(i, delays[i]) for i in late]
            term = torch._foreach_sub([weights[i] for i in late], read_weights)
            torch._foreach_mul_(term, [diagonal[i] for i in late])
            torch._foreach_add_([gradients[i] for i in late], term, alpha=self.coefficient)
        # Recorded after the look-up: until here, age d is W(t − d), which batch t read.
        self._weights.record([weight.clone() for weight in weights])

    def _curvature(self, gradients: Tensors) -> list[Tensor]:
        """D, one tensor per weight."""
        squares = list(torch._foreach_mul(list(gradients), list(gradients)))
        if self.decay == 0:
            return squares
        if self._diagonal:  # decay · average + (1 − decay) · squares, in place
            torch._foreach_lerp_(self._diagonal, squares, 1 - self.decay)
        else:
            self._diagonal = squares
        return self._diagonal

    @override
    def num_buffers(self, lag: int) -> int:
        return lag + (self.decay > 0)

    @override
    def state(self) -> list[State]:
        past = self._weights.state()
        if not self._diagonal:
            return past
        pairs = zip(past, self._diagonal, strict=True)
        return [{**weights, "diagonal": diagonal} for weights, diagonal in pairs]

    @override
    def restore(self, state: Sequence[State]) -> None:
        self._weights.restore(state)
        # Copies: the average is changed in place, and the state is the caller's.
        self._diagonal = [saved["diagonal"].clone() for saved in state if "diagonal" in saved]


class WeightPrediction(NoCorrection):
    """A late forward reads Ŵ = W − h u, where u is the last applied update of any optimizer.

    h is `horizon` times the weight's lag. With a horizon of 1, Ŵ are the weights that the gradient
    will be applied to if all updates equal the last one. Evaluation uses W itself. Error Feedback
    with λ = h has the same trajectory seen from Ŵ, except for the constant λ u_0, so a report
    counts the two as one method.
    """

    needs_update: ClassVar[bool] = True
    reads_ahead: ClassVar[bool] = True

    def __init__(
        self, num_updates: int, lags: Sequence[int], *, horizon: Annotated[float, Ge(0)]
    ) -> None:
        super().__init__(num_updates, lags)
        self._horizons = [horizon * lag for lag in lags]

    @override
    def ahead(self, weights: Tensors, update: Tensors) -> Tensors:
        # Out of place: `weights` is the master, which training goes on from.
        prediction = torch._foreach_mul(list(update), self._horizons)
        return torch._foreach_sub(list(weights), prediction)


class LearningRate(NoCorrection):
    """Divides the learning rate of update k by max(τ, 1)^(1 − min(k / K, 1)), where τ is its delay.

    K is `anneal`: an int is a number of updates, a float a share of all updates. With a delay of 1
    it changes nothing; it is meant for `pipedream`, whose stages have different delays.
    """

    def __init__(
        self,
        num_updates: int,
        lags: Sequence[int],
        *,
        anneal: Annotated[int, Ge(0)] | Annotated[float, Ge(0)],
    ) -> None:
        super().__init__(num_updates, lags)
        self._anneal = anneal if isinstance(anneal, int) else round(anneal * num_updates)

    @override
    def lr_factor(self, update: int, delay: int) -> float:
        progress = min(update / self._anneal, 1.0) if self._anneal else 1.0
        return max(delay, 1) ** (progress - 1.0)
