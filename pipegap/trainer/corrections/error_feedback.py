"""Error Feedback (arXiv 2606.30634): on updates, Eq. 1 and 4; with a λ of another kind, beyond the
paper; and on gradients, the paper's ablation, which diverges there."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.base.flat import chosen, local_parts
from pipegap.trainer.corrections.none import NoCorrection, Past, State, Tensors

Late = Mapping[int, int]
"""Number of a weight that is corrected → its delay in updates."""


class ErrorFeedback(NoCorrection):
    """W(t+1) = W(t) − u_t − λ (u_t − u_{t−lag}), where λ is `coefficient`.

    u_t is recorded at every update, delayed or not. A weight is corrected if its delay is positive
    and the earlier update is not zero (SOAP and ADOPT make a zero update at their first call). The
    `lag` is 1 for every delay, or "delay": then it equals the delay of the gradient.
    """

    needs_update: ClassVar[bool] = True

    def __init__(
        self,
        num_updates: int,
        lags: Sequence[int],
        *,
        coefficient: Annotated[float, Ge(0)],
        lag: Literal[1, "delay"],
    ) -> None:
        super().__init__(num_updates, lags)
        self.coefficient, self.lag = coefficient, lag
        # Named by class: a derived class may count more buffers than the past updates.
        self._updates = Past("update", [ErrorFeedback.num_buffers(self, lag) for lag in lags])
        self._sent: Tensor | None = None
        """`_sizes` of the coming `apply`, on its way to the host."""

    @override
    def apply(self, weights: Tensors, update: Tensors, delays: Sequence[int]) -> None:
        if ages := self._ages(delays):
            earlier, late = self._updates.take(ages), {i: delays[i] for i in ages}
            self._correct(late, chosen(weights, late), chosen(update, late), earlier)
        # Last: `take` may have lent the oldest tensors, now overwritten, and this drops them.
        self._updates.record(update)

    @override
    def look_back(self, delays: Sequence[int]) -> None:
        """Sends to the host which of the earlier updates are zero."""
        if ages := self._ages(delays):
            sizes = _magnitudes([self._updates.get(i, age) for i, age in ages.items()])
            self._sent = torch.empty_like(sizes, device="cpu")
            if sizes.is_cuda:  # a copy to memory that is not pinned would stop the host
                self._sent = self._sent.pin_memory()
            self._sent.copy_(sizes, non_blocking=True)

    def _ages(self, delays: Sequence[int]) -> dict[int, int]:
        """Number of each weight to correct → age of the earlier update that it is compared with.

        These are the weights that are late and have such an update.
        """
        ages = delays if self.lag == "delay" else [1] * len(delays)
        pairs = enumerate(zip(delays, ages, strict=True))
        return {i: age for i, (delay, age) in pairs if delay > 0 and self._updates.has(i, age)}

    def _correct(
        self,
        late: Late,
        weights: Tensors,  # of the late weights alone, like the other two
        update: Tensors,
        earlier: Tensors,  # u_{t−lag}, overwritten
    ) -> None:
        """Adds λ (u_{t−lag} − u_t) to the `late` weights, without a host sync."""
        sizes = self._sizes(update, earlier)
        # In place: a new tensor per weight would be another set of weights in memory.
        torch._foreach_sub_(local_parts(earlier), local_parts(update))
        _scale(earlier, self._factors(late, sizes, earlier))
        torch._foreach_add_(local_parts(weights), local_parts(earlier))

    def _sizes(self, update: Tensors, earlier: Tensors) -> Tensor:
        """What `_factors` needs to know of the two updates: here, [weights] numbers, each 0 only
        if the earlier update is zero."""
        sent, self._sent = self._sent, None
        if sent is not None:
            return sent
        # A first entry that is not 0 proves it without a pass over the whole tensor.
        if all(type(tensor) is Tensor and tensor.is_cpu and tensor.numel() for tensor in earlier):
            firsts = torch.stack([tensor.as_strided((), ()) for tensor in earlier])
            if firsts.all():
                return firsts
        return _magnitudes(earlier)

    def _factors(self, late: Late, sizes: Tensor, difference: Tensors) -> Tensor:
        """λ of each late weight, [weights], or 0 where there was no earlier update."""
        return (sizes != 0) * torch.tensor(self.coefficient, dtype=sizes.dtype)

    @override
    def graph_factor(self) -> Callable[[int], float] | None:
        coefficient = self.coefficient
        return (lambda delay: coefficient * float(delay > 0)) if self.lag == 1 else None

    @override
    def num_buffers(self, lag: int) -> int:
        return lag if self.lag == "delay" else 1

    @override
    def state(self) -> list[State]:
        return self._updates.state()

    @override
    def restore(self, state: Sequence[State]) -> None:
        self._updates.restore(state)


def _magnitudes(tensors: Tensors) -> Tensor:
    """The sum of the magnitudes of each tensor, [tensors].

    Unlike a sum of squares it does not underflow to 0, and on a CPU torch computes it faster than
    the largest magnitude.
    """
    return torch.stack(torch._foreach_norm(list(tensors), 1))


def _scale(tensors: Tensors, factors: Tensor) -> None:
    """Multiplies each tensor by its factor, in place."""
    if factors.is_cuda or hasattr(factors, "to_local"):  # the host would wait for the numbers
        torch._foreach_mul_(list(tensors), list(factors.unbind()))
        return
    numbers = factors.tolist()
    if len(set(numbers)) > 1:
        torch._foreach_mul_(list(tensors), numbers)
    elif numbers[0] != 1:
        torch._foreach_mul_(local_parts(tensors), numbers[0])


class MatchedErrorFeedback(ErrorFeedback):
    """W(t+1) = W(t) − u_t − λ τ (u_t − u_{t−lag}), where τ is the delay of the weight's gradient.

    Error Feedback predicts the weights λ updates ahead (docs/semantics.md). A gradient that is τ
    updates old needs a prediction over τ of them: λ = 1 matches it, with a lag of 1. At a delay of
    1 this is Error Feedback.
    """

    @override
    def _factors(self, late: Late, sizes: Tensor, difference: Tensors) -> Tensor:
        factors = super()._factors(late, sizes, difference)
        # Numbers, not a tensor of them: on a GPU the host would wait for its copy.
        return torch.stack(torch._foreach_mul(list(factors.unbind()), list(late.values())))

    @override
    def graph_factor(self) -> Callable[[int], float] | None:
        coefficient = self.coefficient
        return (lambda delay: coefficient * float(delay)) if self.lag == 1 else None


class AdaptiveErrorFeedback(ErrorFeedback):
    """W(t+1) = W(t) − u_t − λ_t (u_t − u_{t−1}) with its own λ_t for each weight tensor.

    Error Feedback takes its gradients at weights that lie λ u_{t−1} ahead of the plain sum of the
    updates, so it predicts that u_t = λ u_{t−1}. The λ that predicts u_t best in the sense of least
    squares is ⟨u_t, u_{t−1}⟩ / ‖u_{t−1}‖²; hence

        λ_t = coefficient · clamp(a_t / b_t, 0, 1),
        a_t, b_t = running averages (`decay`) of ⟨u_t, u_{t−1}⟩ and ‖u_{t−1}‖².

    Updates that repeat each other (high momentum) give λ → coefficient, unrelated ones λ → 0.
    The inner product is computed from three norms, 2⟨u, v⟩ = ‖u‖² + ‖v‖² − ‖u − v‖²; Error Feedback
    has these tensors anyway. The state is that of Error Feedback and, for each weight tensor,
    "agreement": the two numbers a_t and b_t.
    """

    def __init__(
        self,
        num_updates: int,
        lags: Sequence[int],
        *,
        coefficient: Annotated[float, Ge(0)],
        decay: Annotated[float, Interval(ge=0, lt=1)],
    ) -> None:
        super().__init__(num_updates, lags, coefficient=coefficient, lag=1)
        self.decay = decay
        self._averages: dict[int, Tensor] = {}

    @override
    def look_back(self, delays: Sequence[int]) -> None:
        """Sends nothing: the factors need this update too."""

    @override
    def _sizes(self, update: Tensors, earlier: Tensors) -> Tensor:
        """‖u_t‖² and ‖u_{t−1}‖² of each weight, [2, weights]."""
        return torch.stack([_squares(update), _squares(earlier)])

    @override
    def _factors(self, late: Late, sizes: Tensor, difference: Tensors) -> Tensor:
        of_update, of_earlier = sizes  # [weights] each
        # The difference is u_{t−1} − u_t; ⟨u, v⟩ does not depend on its sign.
        products = (of_update + of_earlier - _squares(difference)) / 2
        for i, new in zip(late, torch.stack([products, of_earlier], dim=1), strict=True):
            # Both averages start from their first values: their ratio needs no bias correction.
            # `lerp` from the new value: decay · average + (1 − decay) · new.
            self._averages[i] = new.lerp(self._averages.get(i, new), self.decay)
        averages = torch.stack([self._averages[i] for i in late])  # [weights, 2]
        # 0 / 0, where all updates of a weight were zero, gives λ = 0.
        agreement = (averages[:, 0] / averages[:, 1]).nan_to_num(0.0).clamp(0, 1)
        return self.coefficient * agreement * (of_earlier != 0)

    @override
    def state(self) -> list[State]:
        averages = self._averages
        return [
            {**past, **({"agreement": averages[i]} if i in averages else {})}
            for i, past in enumerate(super().state())
        ]

    @override
    def restore(self, state: Sequence[State]) -> None:
        super().restore(state)
        self._averages = {
            i: saved["agreement"] for i, saved in enumerate(state) if "agreement" in saved
        }


def _squares(tensors: Tensors) -> Tensor:
    return torch.stack(torch._foreach_norm(list(tensors))).square()


class GradientErrorFeedback(NoCorrection):
    """g̃_t = g_t + λ (g_t − g_{t−1}), of raw averaged gradients, before clip and optimizer.

    λ is `coefficient`. g_t is recorded at every update; a weight is corrected where its delay is
    positive.
    """

    def __init__(
        self, num_updates: int, lags: Sequence[int], *, coefficient: Annotated[float, Ge(0)]
    ) -> None:
        super().__init__(num_updates, lags)
        self.coefficient = coefficient
        self._gradients = Past("gradient", [1] * len(lags))

    @override
    def gradient(self, gradients: Tensors, weights: Tensors, delays: Sequence[int]) -> None:
        raw = [gradient.clone() for gradient in gradients]  # g_t, before it is changed in place
        late = [i for i, delay in enumerate(delays) if delay > 0 and self._gradients.has(i, 1)]
        if late:
            earlier = [self._gradients.get(i, 1) for i in late]
            change = torch._foreach_sub([raw[i] for i in late], earlier)
            torch._foreach_add_([gradients[i] for i in late], change, alpha=self.coefficient)
        self._gradients.record(raw)

    @override
    def num_buffers(self, lag: int) -> int:
        return 1

    @override
    def state(self) -> list[State]:
        return self._gradients.state()

    @override
    def restore(self, state: Sequence[State]) -> None:
        self._gradients.restore(state)
