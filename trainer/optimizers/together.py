"""What optimizers of hidden matrices are made of: AdamW beside them, and batches of one shape."""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.base.ranges import NonNegative, Positive
from pipegap.trainer.optimizers.routing import Decay, Group, Parameters, decaying, grouped, split


class Together(Optimizer):
    """One optimizer made of `parts`, optimizers of disjoint weights, with their groups and state.

    A step equals stepping the parts one after the other, bit for bit. Checkpoints do not hold what
    a part keeps outside of `state` and `param_groups`.
    """

    def __init__(self, parts: Iterable[Optimizer]) -> None:
        self.parts = list(parts)
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._link()

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # load_state_dict ends here, with new groups and state
        self._link()

    def _link(self) -> None:
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = list(islice(groups, len(part.param_groups)))
            part.state = self.state
            if isinstance(part, Together):
                part._link()


class StepsItsOwnWay(Together):
    """Moves weights in its own way by the updates of its parts, which do not decay the weights.

    The parts step from weights of zero, and leave there minus the update, without rounding.
    """

    @abstractmethod
    def move(
        self,
        group: Group,
        weights: list[Tensor],  # to be set
        before: list[Tensor],  # as the weights were, may be overwritten
        update: list[Tensor],  # what the parts would subtract, may be overwritten
    ) -> None:
        """Steps the weights of a group that have a gradient, at least one."""

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        moved = []
        for group in self.param_groups:
            if weights := [p for p in group["params"] if p.grad is not None]:
                moved.append((group, weights, [p.detach().clone() for p in weights]))
                torch._foreach_zero_(weights)
        super().step()
        for group, weights, before in moved:
            self.move(group, weights, before, list(torch._foreach_neg(weights)))


def decay_cautiously(weights: Sequence[Tensor], updates: Sequence[Tensor], share: float) -> None:
    """Cautious decay (arXiv 2510.12402): an entry decays unless its update would enlarge it.

    W ← W − share · W in place, where W · update ≥ 0; the update is what will be subtracted.
    """
    for weight, update in zip(weights, updates, strict=True):
        weight.sub_(weight * (weight * update >= 0), alpha=share)


class CautiousDecay(StepsItsOwnWay):
    """Moves weights by the updates of an optimizer, and makes its decay in its place."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__([optimizer])
        for group in self.param_groups:
            group["cautious_decay"], group["weight_decay"] = group["weight_decay"], 0.0

    @override
    def move(
        self, group: Group, weights: list[Tensor], before: list[Tensor], update: list[Tensor]
    ) -> None:
        decay_cautiously(before, update, group["lr"] * group["cautious_decay"])
        torch._foreach_sub_(before, update)
        torch._foreach_copy_(weights, before)


def auxiliary(
    lr: Positive,
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
) -> Group:
    """AdamW's options for all but hidden matrices; the rate is `auxiliary_lr`, else `lr`."""
    own = lr if auxiliary_lr is None else auxiliary_lr
    return {"lr": own, "betas": (auxiliary_momentum, variance_decay), "eps": eps}


def matrices_and_rest(
    parameters: Parameters,
    make: Callable[[list[Group]], Optimizer],
    adamw: Mapping[str, Any],
    weight_decay: float,
) -> Optimizer:
    """The optimizer that `make` returns for the hidden matrices, with torch's AdamW for the rest.

    Either of the two may have no weights.
    """
    matrices, rest = split(parameters)
    parts: list[Optimizer] = []
    if matrices:
        parts.append(make(grouped(matrices, matrix={"weight_decay": weight_decay})))
    if rest:
        parts.append(torch.optim.AdamW(decaying(rest, weight_decay), **adamw))
    return Together(parts)


def beside_adamw(make: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    """Turns an optimizer of hidden matrices into one of all weights, with AdamW for the rest.

    `make(groups, *, lr, …)` returns the optimizer of the matrices. What it is turned into has the
    keywords of both halves; one that both have, such as eps, is one key for both.
    """
    groups, *own = signature(make).parameters
    of_adamw = signature(auxiliary).parameters
    decay = Parameter("weight_decay", Parameter.KEYWORD_ONLY, annotation=NonNegative)

    @wraps(make)
    def factory(parameters: Parameters, **options: Any) -> Optimizer:
        adamw = auxiliary(**{key: options[key] for key in of_adamw})
        make_own = partial(make, **{key: options[key] for key in own})
        return matrices_and_rest(parameters, make_own, adamw, options["weight_decay"])

    both = {**signature(make).parameters, **of_adamw, decay.name: decay}
    keywords = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in both.values() if p.name != groups]
    first = Parameter("parameters", Parameter.POSITIONAL_ONLY)
    # The schema of a choice is its target's signature (`trainer.config.schema`).
    vars(factory)["__signature__"] = Signature([first, *keywords])
    factory.__annotations__ = {keyword.name: keyword.annotation for keyword in keywords}
    return factory


class Batched(Optimizer):
    """Moves batches of matrices of one shape; each matrix has a state of named tensors."""

    def __init__(self, groups: list[Group], **defaults: float | bool | str | None) -> None:
        super().__init__(groups, dict(defaults))

    @abstractmethod
    def start(
        self,
        matrix: Tensor,  # [rows, columns]
    ) -> dict[str, Tensor]:
        """The state of a matrix before its first update."""

    @abstractmethod
    def update(
        self,
        group: Group,
        gradient: Tensor,  # [matrices, rows, columns]
        state: dict[str, Tensor],  # [matrices, …], each as `start` made it
    ) -> Tensor:
        """Returns the update of a batch of matrices, of the gradient's shape; changes `state`."""

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weights in _by_shape(group["params"]):
                self._step(group, weights)

    def _step(self, group: Group, weights: list[Tensor]) -> None:
        for weight in weights:
            if not self.state[weight]:
                self.state[weight].update(self.start(weight))
        states = [self.state[weight] for weight in weights]
        batch = {key: torch.stack([state[key] for state in states]) for key in states[0]}
        update = self.update(
            group, torch.stack([w.grad for w in weights if w.grad is not None]), batch
        )
        for key, values in batch.items():
            torch._foreach_copy_([state[key] for state in states], list(values.unbind()))
        self.move(group, weights, update)

    def move(self, group: Group, weights: list[Tensor], update: Tensor) -> None:
        """W ← (1 − lr · weight_decay) W − lr · update, for matrices of one shape."""
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(update.unbind()), alpha=-group["lr"])


def _by_shape(weights: Iterable[Tensor]) -> list[list[Tensor]]:
    by_shape = defaultdict(list)
    for weight in weights:
        if weight.grad is not None:
            by_shape[weight.shape].append(weight)
    return list(by_shape.values())
