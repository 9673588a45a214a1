"""What optimizers of hidden matrices are made of: AdamW beside them, and batches of one shape."""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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

Within = Callable[[list[Group]], AbstractContextManager[Any]]
"""Groups of an optimizer → a context of its step."""


class Chained(Optimizer):
    """One optimizer made of `parts`, optimizers of disjoint weights, with their groups and state.

    A step equals stepping the parts one after the other, bit for bit, in the context that `within`
    makes of the groups. Checkpoints do not hold what a part keeps outside of `state` and
    `param_groups`.
    """

    def __init__(self, parts: Iterable[Optimizer], within: Within = nullcontext) -> None:
        self.parts, self._within = list(parts), within
        self.surrounds = within is not nullcontext
        """Whether a step does more than its parts' steps."""
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._link()

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        with self._within(self.param_groups):
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
            if isinstance(part, Chained):
                part._link()


def moved_by(
    optimizer: Optimizer, move: Callable[[Group, list[Tensor], list[Tensor]], None], **options: Any
) -> Chained:
    """Moves weights in another way by the updates of an optimizer, and without its decay.

    `move(group, weights, updates)` steps the weights of a group that have a gradient; `updates` are
    what would be subtracted, and may be overwritten. Its groups get these `options`.
    """
    for group in optimizer.param_groups:
        group.update(options, weight_decay=0.0)
    return Chained([optimizer], partial(_moving, move))


@contextmanager
def _moving(move: Callable[..., None], groups: Sequence[Group]) -> Iterator[None]:
    """Has an optimizer step from weights of zero: it leaves minus the update, without rounding."""
    moved = []
    for group in groups:
        if weights := [p for p in group["params"] if p.grad is not None]:
            moved.append((group, weights, [p.detach().clone() for p in weights]))
            torch._foreach_zero_(weights)
    yield
    for group, weights, saved in moved:
        updates = list(torch._foreach_neg(weights))
        torch._foreach_copy_(weights, saved)
        move(group, weights, updates)


def decay_cautiously(weights: Sequence[Tensor], updates: Sequence[Tensor], share: float) -> None:
    """Cautious decay (arXiv 2510.12402): an entry decays unless its update would enlarge it.

    W ← W − share · W in place, where W · update ≥ 0; the update is what will be subtracted.
    """
    for weight, update in zip(weights, updates, strict=True):
        weight.sub_(weight * (weight * update >= 0), alpha=share)


def auxiliary(
    lr: Positive,
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
) -> Group:
    """AdamW's options for all but hidden matrices; the rate is `auxiliary_lr`, else `lr`."""
    rate = lr if auxiliary_lr is None else auxiliary_lr
    return {"lr": rate, "betas": (auxiliary_momentum, variance_decay), "eps": eps}


def matrices_and_rest(
    parameters: Parameters,
    make: Callable[[list[Group]], Optimizer],
    adamw: Mapping[str, Any],
    weight_decay: float,
) -> Optimizer:
    """The optimizer that `make` returns for the hidden matrices, with torch's AdamW for the rest.

    Either of the two may have no weights.
    """
    matrices, remaining_groups = split(parameters)
    parts: list[Optimizer] = []
    if matrices:
        parts.append(make(grouped(matrices, matrix={"weight_decay": weight_decay})))
    if remaining_groups:
        parts.append(torch.optim.AdamW(decaying(remaining_groups, weight_decay), **adamw))
    return Chained(parts)


def beside_adamw(make: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    """Turns an optimizer of hidden matrices into one of all weights, with AdamW for the rest.

    `make(groups, *, lr, …)` returns the optimizer of the matrices. What it is turned into has the
    keywords of both halves; one that both have, such as eps, is one key for both.
    """
    groups, *own_parameters = signature(make).parameters
    of_adamw = signature(auxiliary).parameters
    decay = Parameter("weight_decay", Parameter.KEYWORD_ONLY, annotation=NonNegative)

    @wraps(make)
    def factory(parameters: Parameters, **options: Any) -> Optimizer:
        adamw = auxiliary(**{key: options[key] for key in of_adamw})
        make_own = partial(make, **{key: options[key] for key in own_parameters})
        return matrices_and_rest(parameters, make_own, adamw, options["weight_decay"])

    all_parameters = {**signature(make).parameters, **of_adamw, decay.name: decay}
    keywords = [
        p.replace(kind=Parameter.KEYWORD_ONLY) for p in all_parameters.values() if p.name != groups
    ]
    first = Parameter("parameters", Parameter.POSITIONAL_ONLY)
    # The schema of a choice is its target's signature (`trainer.config.schema`).
    vars(factory)["__signature__"] = Signature([first, *keywords])
    factory.__annotations__ = {keyword.name: keyword.annotation for keyword in keywords}
    return factory


class MatrixOptimizer(Optimizer):
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
        gradient = torch.stack([w.grad for w in weights if w.grad is not None])
        update = self.update(group, gradient, {**batch, **self.seen(weights)})
        for key, values in batch.items():
            torch._foreach_copy_([state[key] for state in states], list(values.unbind()))
        self.move(group, weights, update)

    def seen(self, weights: list[Tensor]) -> dict[str, Tensor]:
        """What `update` sees beside the state of these matrices of one shape: nothing."""
        return {}

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
