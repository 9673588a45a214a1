"""Error Feedback on updates (arXiv 2606.30634, Eq. 1 and 4)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.base.flat import are_at_hand, chosen, wholes
from pipegap.trainer.corrections.none import NoCorrection, State
from pipegap.trainer.corrections.past import Past

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
        self._updates = Past("update", [self.num_buffers(lag) for lag in lags])
        self._sent: Tensor | None = None

    @override
    def apply(
        self, weights: Sequence[Tensor], update: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        if ages := self._ages(delays):
            earlier, late = self._updates.take(ages), {i: delays[i] for i in ages}
            self._correct(late, chosen(weights, late), chosen(update, late), earlier)
        self._updates.record(update)

    @override
    def look_back(self, delays: Sequence[int]) -> None:
        """Sends to the host which of the earlier updates are zero."""
        if ages := self._ages(delays):
            sizes = _magnitudes([self._updates.get(i, age) for i, age in ages.items()])
            self._sent = torch.empty_like(sizes, device="cpu")
            if sizes.is_cuda:  # which copies to other memory before it lets the host go on
                self._sent = self._sent.pin_memory()
            self._sent.copy_(sizes, non_blocking=True)

    def _ages(self, delays: Sequence[int]) -> dict[int, int]:
        """Number of each weight to correct → how many updates before this one the earlier one was
        made: the weights that are late and have an earlier update."""
        ages = delays if self.lag == "delay" else [1] * len(delays)
        pairs = enumerate(zip(delays, ages, strict=True))
        return {i: age for i, (delay, age) in pairs if delay > 0 and self._updates.has(i, age)}

    def _correct(
        self,
        late: Late,
        weights: Sequence[Tensor],  # of the late weights alone, like the other two
        update: Sequence[Tensor],
        earlier: Sequence[Tensor],  # u_{t−lag}, overwritten
    ) -> None:
        """Adds λ (u_{t−lag} − u_t) to the `late` weights, without a host sync."""
        sizes = self._sizes(update, earlier)
        # In place: a new tensor per weight would be another set of weights in memory.
        torch._foreach_sub_(*wholes(earlier, update))
        _scale(earlier, self._factors(late, sizes, earlier))
        torch._foreach_add_(*wholes(weights, earlier))

    def _sizes(self, update: Sequence[Tensor], earlier: Sequence[Tensor]) -> Tensor:
        """What `_factors` needs to know of both: here, a number that is 0 only for a zero update.

        On a CPU the first entries most often suffice.
        """
        sent, self._sent = self._sent, None
        if sent is not None:
            return sent
        if are_at_hand(earlier) and (firsts := earlier.layout.firsts(earlier.wholes)).all():
            return firsts
        return _magnitudes(earlier)

    def _factors(self, late: Late, sizes: Tensor, difference: Sequence[Tensor]) -> Tensor:
        """λ of each late weight, [weights], or 0 where there was no earlier update."""
        return (sizes != 0) * torch.tensor(self.coefficient, dtype=sizes.dtype)

    @override
    def num_buffers(self, lag: int) -> int:
        return lag if self.lag == "delay" else 1

    @override
    def state(self) -> list[State]:
        return self._updates.state()

    @override
    def restore(self, state: Sequence[State]) -> None:
        self._updates.restore(state)


def _magnitudes(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of the magnitudes of each tensor, [tensors]: none underflows in it, and torch is slow
    at their maximum on a CPU."""
    return torch.stack(torch._foreach_norm(list(tensors), 1))


def _scale(tensors: Sequence[Tensor], factors: Tensor) -> None:
    """Multiplies each tensor by its factor, in place."""
    if factors.is_cuda or hasattr(factors, "to_local"):  # the host would wait for the numbers
        torch._foreach_mul_(list(tensors), list(factors.unbind()))
        return
    numbers = factors.tolist()
    if len(set(numbers)) > 1:
        torch._foreach_mul_(list(tensors), numbers)
    elif numbers[0] != 1:
        torch._foreach_mul_(wholes(tensors)[0], numbers[0])
