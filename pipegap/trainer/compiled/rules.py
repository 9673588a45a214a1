"""How optimizers step a block of weights, as functions that a graph can be made of: what a rule is,
and those that step every entry by itself, but for a norm (Adam, Lion, Adan, MARS).

A rule makes the step of a library's optimizer from the same state and the same options, with other
rounding; tests hold it to the library. Whatever changes from update to update or from trial to
trial, such as a learning rate or a decay, is an entry of `numbers`, so that one graph serves all
trials of a model. What is left are the fields of a rule, which choose the graph.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import override

Group = Mapping[str, Any]
Tensors = Sequence[Tensor]
Numbers = Mapping[str, Tensor]
"""Scalars by name, which a graph gets as entries of one vector."""
Key = tuple[str | int, ...]
"""Where a tensor lies in the state of a weight: a key, and for a list of tensors an index."""


class Rule(ABC):
    """The step of one kind of weight by one optimizer.

    `keys` say which tensors of a weight's state the graph reads and changes, in order. They are
    stacked like the weights. A rule that says which class it `steps` is part of what
    `compile=update` means: another one for that class changes the numbers of trials that have an id
    already, so it needs another name.
    """

    keys: ClassVar[tuple[Key, ...]]
    steps: ClassVar[str]
    """The optimizer whose steps it makes, by library and class: `torch.AdamW`."""

    @classmethod
    def of(cls, group: Group) -> "Rule | None":
        """The rule for a group of that optimizer's weights, by its options; None: no rule."""
        return cls()

    @abstractmethod
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        """What `stepped` gets as `numbers`; `step` is the number of this step, from 1."""

    @abstractmethod
    def stepped(
        self,
        weights: Tensor,  # [members, *shape], not changed
        gradients: Tensor,  # of the same shape, clipped
        state: Tensors,  # one per key, [members, …], changed in place
        numbers: Numbers,
    ) -> Tensor:
        """Returns the stepped weights."""

    def done(self, group: Group, state: Tensors) -> int:
        """How many steps the optimizer has made, if it counts; the graph's `state` is given."""
        return int(group.get("step", 0))

    def renew(self, group: Group, step: int, state: Tensors) -> None:  # noqa: B027
        """Does after a step what is due only now and then, in place and without a graph.

        Most rules have nothing to do.
        """


def corrected(decay: float, step: int) -> float:
    """What divides an average that started from zero, after `step` steps."""
    return 1 - decay**step


def norms(blocks: Tensor) -> Tensor:
    """The Frobenius norm of each matrix [members, rows, columns], as [members, 1, 1]."""
    return (blocks * blocks).sum((-2, -1), keepdim=True).sqrt()


def _of_adam(
    group: Group, lr: float, decay: float, betas: tuple[float, float], step: int
) -> dict[str, float]:
    """Return what an update of Adam takes beside its averages."""
    first, second = betas
    return {
        "kept": 1 - lr * decay,
        "new": 1 - first,
        "old square": second,
        "new square": 1 - second,
        "root": math.sqrt(corrected(second, step)),
        "eps": group["eps"],
        "size": lr / corrected(first, step),
    }


@dataclass(frozen=True)
class Adam(Rule):
    """AdamW, of torch or beside another optimizer of the library."""

    keys: ClassVar[tuple[Key, ...]] = ("exp_avg",), ("exp_avg_sq",)

    @override
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        return _of_adam(group, group["lr"], group["weight_decay"], group["betas"], step)

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        mean, square = state[:2]
        mean.copy_(mean + numbers["new"] * (gradients - mean))
        square.copy_(numbers["old square"] * square + numbers["new square"] * gradients * gradients)
        return weights * numbers["kept"] - numbers["size"] * mean / (
            square.sqrt() / numbers["root"] + numbers["eps"]
        )


@dataclass(frozen=True)
class TorchAdam(Adam):
    """torch's AdamW, which counts the steps of each weight in a tensor."""

    steps: ClassVar[str] = "torch.AdamW"
    keys: ClassVar[tuple[Key, ...]] = ("exp_avg",), ("exp_avg_sq",), ("step",)

    @override
    @classmethod
    def of(cls, group: Group) -> Rule | None:
        return None if group["amsgrad"] or group["maximize"] else cls()

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        state[2].copy_(state[2] + 1)
        return super().stepped(weights, gradients, state, numbers)

    @override
    def done(self, group: Group, state: Tensors) -> int:
        return int(state[2][0])


@dataclass(frozen=True)
class Lion(Rule):
    """Lion: the sign of an interpolation."""

    steps: ClassVar[str] = "pytorch_optimizer.Lion"
    keys: ClassVar[tuple[Key, ...]] = (("exp_avg",),)

    @override
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        between, momentum = group["betas"]
        return {
            "kept": 1 - group["lr"] * group["weight_decay"],
            "between": 1 - between,
            "new": 1 - momentum,
            "lr": group["lr"],
        }

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        (mean,) = state
        change = gradients - mean
        signs = (mean + numbers["between"] * change).sign()
        mean.copy_(mean + numbers["new"] * change)
        return weights * numbers["kept"] - numbers["lr"] * signs


@dataclass(frozen=True)
class Adan(Rule):
    """Adan, whose decay comes after its step."""

    steps: ClassVar[str] = "pytorch_optimizer.Adan"
    keys: ClassVar[tuple[Key, ...]] = (
        ("exp_avg",),
        ("exp_avg_diff",),
        ("exp_avg_sq",),
        ("previous_grad",),
    )

    @override
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        first, second, third = group["betas"]
        lr = group["lr"]
        return {
            "new": 1 - first,
            "new change": 1 - second,
            "share of change": second,
            "old square": third,
            "new square": 1 - third,
            "root": math.sqrt(corrected(third, step)),
            "eps": group["eps"],
            "size": lr / corrected(first, step),
            "size of changes": lr * second / corrected(second, step),
            "decay": 1 + lr * group["weight_decay"],
        }

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        mean, changes, square, negative = state
        change = negative + gradients  # the library keeps the last gradient with a minus
        mean.copy_(mean + numbers["new"] * (gradients - mean))
        changes.copy_(changes + numbers["new change"] * (change - changes))
        direction = gradients + numbers["share of change"] * change
        square.copy_(numbers["old square"] * square + numbers["new square"] * direction * direction)
        negative.copy_(-gradients)
        root = square.sqrt() / numbers["root"] + numbers["eps"]
        step = numbers["size"] * mean / root + numbers["size of changes"] * changes / root
        return (weights - step) / numbers["decay"]


@dataclass(frozen=True)
class MarsVector(Rule):
    """What MARS does with vectors: AdamW with options of its own."""

    steps: ClassVar[str] = "pytorch_optimizer.MARS"
    keys: ClassVar[tuple[Key, ...]] = ("exp_avg",), ("exp_avg_sq",), ("last_grad",)

    @override
    @classmethod
    def of(cls, group: Group) -> Rule:
        return Mars() if group["params"][0].ndim > 1 else MarsVector()

    @override
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        lr = group["lr"] * group["lr_1d_factor"]
        return _of_adam(group, lr, group["weight_decay_1d"], group["betas_1d"], step)

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        return self._by(gradients, weights, gradients, state, numbers)

    def _by(
        self,
        direction: Tensor,
        weights: Tensor,
        gradients: Tensor,
        state: Tensors,
        numbers: Numbers,
    ) -> Tensor:
        """Return the weights stepped by averages of `direction`."""
        mean, square, last = state
        mean.copy_(mean + numbers["new"] * (direction - mean))
        square.copy_(numbers["old square"] * square + numbers["new square"] * direction * direction)
        last.copy_(gradients)
        return weights * numbers["kept"] - numbers["size"] * mean / (
            ((square + 1e-15).sqrt() + numbers["eps"]) / numbers["root"]
        )


@dataclass(frozen=True)
class Mars(MarsVector):
    """MARS-AdamW for matrices: Adam of a gradient that is corrected by its last change."""

    @override
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        first, _ = group["betas"]
        of_adam = _of_adam(group, group["lr"], group["weight_decay"], group["betas"], step)
        return {"share of change": group["gamma"] * first / (1 - first), **of_adam}

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        direction = gradients + numbers["share of change"] * (gradients - state[2])
        direction = direction / norms(direction).clamp_min(1)
        return self._by(direction, weights, gradients, state, numbers)
