"""Which optimizers and corrections have a rule by which a graph makes their update.

What these tables hold is part of what `compile=update` means: another entry changes the numbers of
trials that have an id already, so it needs another name.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from pipegap.trainer.compiled.rules import (
    Adam,
    Adan,
    Group,
    Lion,
    Mars,
    MarsVector,
    Rule,
    TorchAdam,
)
from pipegap.trainer.compiled.rules_of_matrices import Muon, NorMuon, Soap
from pipegap.trainer.corrections.ema_nesterov import EmaNesterov
from pipegap.trainer.corrections.error_feedback import ErrorFeedback, MatchedErrorFeedback
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers.chained import Chained
from pipegap.trainer.optimizers.orthogonal import JORDAN


def _muon(group: Group) -> Rule | None:
    if not group["use_muon"]:
        return Adam()
    if {*group["ns_coeffs"]} != {JORDAN}:
        return None
    return Muon(group["nesterov"], group["ns_steps"], group["use_adjusted_lr"])


def _normuon(group: Group) -> Rule:
    if not group["use_muon"]:
        return Adam()
    fields = group["nesterov"], group["ns_steps"], group["use_adjusted_lr"]
    return NorMuon(*fields, keeps_norm=group["update_scale"] == "preserve_norm")


RULES: Mapping[str, Callable[[Group], Rule | None]] = {
    "torch.AdamW": lambda group: TorchAdam(),
    "pytorch_optimizer.Adan": lambda group: Adan(),
    "pytorch_optimizer.Lion": lambda group: Lion(),
    "pytorch_optimizer.MARS": lambda g: Mars() if g["params"][0].ndim > 1 else MarsVector(),
    "pytorch_optimizer.Muon": _muon,
    "pytorch_optimizer.NorMuon": _normuon,
    "pytorch_optimizer.SOAP": lambda group: Soap(),
}
"""Class of a library → the rule of a group of its weights, if it has one."""

FEEDBACK: Mapping[type[NoCorrection], Callable[[int], float]] = {
    ErrorFeedback: lambda delay: float(delay > 0),
    EmaNesterov: lambda delay: float(delay > 0),
    MatchedErrorFeedback: float,
}
"""Correction that the graph makes → multiple of its coefficient at a delay."""


def rules(optimizer: Optimizer) -> dict[Tensor, tuple[dict[str, Any], Rule]]:
    """The group and the rule of each weight that has a rule."""
    pairs = zip(optimizer.param_groups, _by_group(optimizer), strict=True)
    ruled = [(group, rule) for group, rule in pairs if rule is not None]
    return {weight: (group, rule) for group, rule in ruled for weight in group["params"]}


def _by_group(optimizer: Optimizer) -> list[Rule | None]:
    """The rule of each group, in order; None for a group without one."""
    found: list[Rule | None] = []
    for part in optimizer.parts if isinstance(optimizer, Chained) else [optimizer]:
        make = RULES.get(f"{type(part).__module__.partition('.')[0]}.{type(part).__name__}")
        found += [make(group) if make is not None else None for group in part.param_groups]
    return found


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
    """Delay → λ, if the graph makes this correction; it makes Error Feedback with a lag of 1."""
    factor = FEEDBACK.get(type(correction))
    if not isinstance(correction, ErrorFeedback) or factor is None or correction.lag != 1:
        return None
    coefficient = correction.coefficient
    return lambda delay: coefficient * factor(delay)
