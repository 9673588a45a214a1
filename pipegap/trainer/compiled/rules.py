"""How optimizers step a block of weights, as functions that a graph can be made of."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.base.build import build, label, made
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers.orthogonal import JORDAN
from pipegap.trainer.optimizers.routing import KINDS, Chained

# What a rule is, and the rules that step every entry by itself, but for a norm (Adam, Lion, Adan,
# MARS).
#
# A rule makes the step of a library's optimizer from the same state and the same options, with
# other rounding; tests hold it to the library. Whatever changes from update to update or from
# trial to trial, such as a learning rate or a decay, is an entry of `numbers`, so that one graph
# serves all trials of a model. What is left are the fields of a rule, which choose the graph.

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
        mean, square = state[:2]  # a subclass has more
        # As torch's lerp: m + (1 − β₁) (g − m).
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
        # Routing makes a group of weights of one kind, so its first one tells.
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
        # Unlike in Adam: 1e-15 below the root, and eps divided by the bias correction too.
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
        direction = direction / norms(direction).clamp_min(1)  # clipped to a norm of 1
        return self._by(direction, weights, gradients, state, numbers)


# Rules of hidden matrices: Muon, NorMuon, SOAP.

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration (Jordan 2024)."""


def orthogonal(matrices: Tensor, num_steps: int) -> Tensor:
    """Nearly the closest matrices with orthonormal rows or columns, by Newton-Schulz.

    `matrices` are [members, rows, columns]. The library computes in bf16, which is slow on CPUs
    without products in it, and no faster than fp32 for small matrices on the others: this computes
    in fp32.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]  # then x xᵀ of the transpose is smaller
    x = matrices.mT if is_tall else matrices
    x = x / norms(x).clamp_min(1e-7)  # singular values in [0, 1]; zeros stay zeros
    first, third, fifth = QUINTIC
    for _ in range(num_steps):
        gram = x @ x.mT  # [members, n, n], n the smaller side
        x = first * x + (third * gram + fifth * (gram @ gram)) @ x
    return x.mT if is_tall else x


@dataclass(frozen=True)
class Muon(Rule):
    """Muon of hidden matrices: momentum, orthogonalised."""

    nesterov: bool
    num_steps: int
    is_adjusted: bool
    """Whether 0.2 √max(rows, columns) is the size of an update, and not √max(1, rows / columns)."""
    steps: ClassVar[str] = "pytorch_optimizer.Muon"
    keys: ClassVar[tuple[Key, ...]] = (("momentum_buffer",),)

    @override
    @classmethod
    def of(cls, group: Group) -> Rule | None:
        if not group["use_muon"]:
            return Adam()
        if {*group["ns_coeffs"]} != {JORDAN}:
            return None
        return Muon(group["nesterov"], group["ns_steps"], group["use_adjusted_lr"])

    @override
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        lr, momentum = group["lr"], group["momentum"]
        return {
            "kept": 1 - lr * group["weight_decay"],
            "new": 1 - momentum,
            "old": momentum,
            "lr": lr,
        }

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        update = orthogonal(self.momentum(gradients, state[0], numbers), self.num_steps)
        return weights * numbers["kept"] - numbers["lr"] * self.size(weights) * update

    def momentum(self, gradients: Tensor, mean: Tensor, numbers: Numbers) -> Tensor:
        """What is orthogonalised; changes `mean`, the momentum, in place."""
        mean.copy_(mean + numbers["new"] * (gradients - mean))
        return gradients + numbers["old"] * (mean - gradients) if self.nesterov else mean

    def size(self, weights: Tensor) -> float:
        """What an orthogonal update is multiplied by, of matrices [members, rows, columns]."""
        rows, columns = weights.shape[-2:]
        if self.is_adjusted:
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns))


@dataclass(frozen=True)
class NorMuon(Muon):
    """NorMuon of hidden matrices: Muon's update with rows of equal size."""

    keeps_norm: bool
    """Whether the update keeps the norm that it had, and does not get a root mean square of 0.2."""
    steps: ClassVar[str] = "pytorch_optimizer.NorMuon"
    keys: ClassVar[tuple[Key, ...]] = ("momentum_buffer",), ("second_momentum_buffer",)

    @override
    @classmethod
    def of(cls, group: Group) -> Rule:
        if not group["use_muon"]:
            return Adam()
        fields = group["nesterov"], group["ns_steps"], group["use_adjusted_lr"]
        return NorMuon(*fields, keeps_norm=group["update_scale"] == "preserve_norm")

    @override
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        own_numbers = {"new square": 1 - group["beta2"], "eps": group["eps"]}
        return {**super().numbers(group, step), **own_numbers}

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        update = orthogonal(self.momentum(gradients, state[0], numbers), self.num_steps)
        rows = state[1]  # [members, rows, 1]
        squares = (update * update).mean(-1, keepdim=True)
        rows.copy_(rows + numbers["new square"] * (squares - rows))
        even = update / (rows.sqrt() + numbers["eps"])
        entries = weights.shape[-2] * weights.shape[-1]
        target_norms = norms(update) if self.keeps_norm else 0.2 * math.sqrt(entries)
        size = self.size(weights) if self.keeps_norm else 1.0
        decayed = weights * numbers["kept"]
        return (
            decayed - numbers["lr"] * size * (target_norms / (norms(even) + numbers["eps"])) * even
        )


@dataclass(frozen=True)
class Soap(Rule):
    """SOAP of hidden matrices: Adam in the eigenbases of averaged g gᵀ and gᵀ g."""

    steps: ClassVar[str] = "pytorch_optimizer.SOAP"
    keys: ClassVar[tuple[Key, ...]] = (
        ("exp_avg",),
        ("exp_avg_sq",),
        ("GG", 0),
        ("GG", 1),
        ("Q", 0),
        ("Q", 1),
    )

    @override
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        first, second = group["betas"]
        done = step - 1  # the first step of the library only looks
        root = math.sqrt(corrected(second, done))
        share = second if group["shampoo_beta"] is None else group["shampoo_beta"]
        return {
            "kept": 1 - group["lr"] * group["weight_decay"],
            "new": 1 - first,
            "new square": 1 - second,
            "share": 1 - share,
            "eps": group["eps"],
            "size": group["lr"] * root / corrected(first, done),
        }

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        mean, square, of_rows, of_columns, rows, columns = state
        share = numbers["share"]
        turned = rows.mT @ gradients @ columns  # Qₗᵀ g Qᵣ: g in the eigenbases
        mean.copy_(mean + numbers["new"] * (gradients - mean))
        square.copy_(square + numbers["new square"] * (turned * turned - square))
        # The mean is kept outside of the bases, which change, and the square inside.
        update = (rows.mT @ mean @ columns) / (square.sqrt() + numbers["eps"])
        of_rows.copy_(of_rows + share * (gradients @ gradients.mT - of_rows))
        of_columns.copy_(of_columns + share * (gradients.mT @ gradients - of_columns))
        step = numbers["size"] * (rows @ update @ columns.mT)
        return (weights - step) * numbers["kept"]  # the decay after the step, unlike AdamW

    @override
    def renew(self, group: Group, step: int, state: Tensors) -> None:
        """One power iteration of both bases, every `precondition_frequency` steps."""
        if (step - 1) % group["precondition_frequency"]:
            return
        _, square, *averages, rows, columns = state
        for side, (average, basis) in enumerate(zip(averages, (rows, columns), strict=True)):
            product = average @ basis
            # qᵀ A q of each basis vector, about its eigenvalue: the largest come first.
            order = (basis * product).sum(-2).argsort(-1, descending=True)
            columns_in_order = order.unsqueeze(-2).expand_as(product)
            basis.copy_(torch.linalg.qr(product.gather(-1, columns_in_order)).Q)
            along = side - 2  # entries of the second moment belong to a pair of basis vectors
            index = order.unsqueeze(-1 if along == -2 else -2).expand_as(square)
            square.copy_(square.gather(along, index))


# Which optimizers and corrections a graph makes: of an optimizer by the rules of the classes of a
# library that it steps, of a correction as it says itself (`NoCorrection.graph_factor`).

# Of the classes above, so that a rule declares itself by `steps`; not an inherited one.
RULES: Mapping[str, type[Rule]] = {
    member.steps: member
    for member in [*globals().values()]
    if isinstance(member, type) and issubclass(member, Rule) and "steps" in vars(member)
}
"""Class of a library → what makes the rule of a group of its weights, if the group has one."""


def rules(optimizer: Optimizer) -> dict[Tensor, tuple[dict[str, Any], Rule]]:
    """The group and the rule of each weight that has a rule."""
    pairs = zip(optimizer.param_groups, _by_group(optimizer), strict=True)
    ruled = [(group, rule) for group, rule in pairs if rule is not None]
    return {weight: (group, rule) for group, rule in ruled for weight in group["params"]}


def _by_group(optimizer: Optimizer) -> list[Rule | None]:
    """The rule of each group, in order; None for a group without one."""
    rules_found: list[Rule | None] = []
    for part in _steppers(optimizer):
        rule = RULES.get(f"{type(part).__module__.partition('.')[0]}.{type(part).__name__}")
        # A hook around the step would not be called by a graph.
        is_bare = rule is not None and not _is_surrounded(part)
        rules_found += [rule.of(group) if is_bare and rule else None for group in part.param_groups]
    return rules_found


def _steppers(optimizer: Optimizer) -> Iterator[Optimizer]:
    """Yield the optimizers that step one after the other and do nothing else: the parts of a chain,
    unless it does something around them."""
    if type(optimizer) is Chained and not optimizer.surrounds:
        yield from chain.from_iterable(map(_steppers, optimizer.parts))
    else:
        yield optimizer


def _is_surrounded(optimizer: Optimizer) -> bool:
    """Whether somebody has code run before or after a step of this optimizer, or in its place."""
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return any(hooks) or "step" in vars(optimizer)


def without_graph(optimizer: Optimizer, correction: NoCorrection) -> list[str]:
    """Which of the groups `optimizer` and `correction` no graph makes."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    kind = type(correction)
    does_nothing = (kind.apply, kind.gradient) == (NoCorrection.apply, NoCorrection.gradient)
    is_made = {
        "optimizer": len(rules(optimizer)) == len(weights),
        "correction": does_nothing or feedback(correction) is not None,
    }
    return [group for group, is_so in is_made.items() if not is_so]


def feedback(correction: NoCorrection) -> Callable[[int], float] | None:
    """Delay → λ, if the graph makes this correction, as its very class says: a class that derives
    from it may correct in another way."""
    is_said = "graph_factor" in vars(type(correction))  # `vars`: not what it inherits
    return correction.graph_factor() if is_said else None


def require_graphs(config: Mapping[str, Any]) -> None:
    """Raise BadInput for a choice that `compile=update` leaves to the code of `compile=false`.

    Optimizer and correction are made for one small weight of each kind.
    """
    if config["compile"] != "update":
        return
    parameters = [(kind, nn.Parameter(torch.zeros(shape))) for kind, shape in KINDS.items()]
    optimizer = made("optimizer", config["optimizer"], Optimizer, parameters)
    correction = build(config["correction"], 1, [1] * len(parameters))
    for group in without_graph(optimizer, correction):
        allowed = "has no graph, or not with these options, with compile=update: compile=false does"
        raise BadInput(group, label(config[group]), f"{allowed} without")
