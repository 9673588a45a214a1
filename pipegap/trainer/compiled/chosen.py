"""Which optimizers and corrections a graph makes: of an optimizer by the rules of the classes of a
library that it steps, of a correction as it says itself (`NoCorrection.graph_factor`)."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipegap.trainer.base.build import build, label, made
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.compiled import rules as rules_of_entries
from pipegap.trainer.compiled import rules_of_matrices
from pipegap.trainer.compiled.rules import Rule
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers.chained import Chained
from pipegap.trainer.optimizers.routing import KINDS

RULES: Mapping[str, type[Rule]] = {
    member.steps: member
    for module in (rules_of_entries, rules_of_matrices)
    for member in vars(module).values()
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
    is_said = "graph_factor" in vars(type(correction))
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
