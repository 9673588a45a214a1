"""The preconditioner P of an optimizer that divides by the root of a mean of squared gradients.

Its update is lr · P⁻¹ · (a filter of gradients), as in analysis/theory. It is read from the state:
P = sqrt(v / (1 − β₂^n)) + eps, entry by entry, of SOAP in the eigenbasis of its factors.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.base.build import Node, published
from trainer.base.errors import BadInput

Vectors = Sequence[Tensor]
"""One tensor per weight, of its shape."""

_HERE = "trainer.optimizers"
UPDATES_BEFORE_ONE: Mapping[str, int] = {
    **{f"{_HERE}.{name}": 0 for name in ("adamw", "nadamw", "adan", "ademamix", "mars")},
    f"{_HERE}.soap": 1,
}
"""Published address of an optimizer that is covered → how many of its first calls do not count in
the bias correction of v."""


def require_covered(node: Node) -> None:
    """Raises BadInput for an optimizer without such a preconditioner."""
    if (address := published(node["_target_"])) not in UPDATES_BEFORE_ONE:
        known = ", ".join(at.rpartition(".")[2] for at in UPDATES_BEFORE_ONE)
        name = address.rpartition(".")[2]
        allowed = f"must divide by the root of a mean of squared gradients, as {known} do"
        raise BadInput("optimizer", name, allowed)


def inverse_root(
    node: Node, optimizer: Optimizer, weights: Sequence[nn.Parameter], num_updates: int
) -> Callable[[Vectors], list[Tensor]]:
    """Returns the symmetric map x → P^(−1/2) x after `num_updates` of the optimizer.

    `node` has the optimizer's settings. Raises BadInput where `require_covered` does.
    """
    require_covered(node)
    group_of = {w: group for group in optimizer.param_groups for w in group["params"]}
    steps = num_updates - UPDATES_BEFORE_ONE[published(node["_target_"])]
    maps = [
        _of_weight(
            optimizer.state[weight],
            _decay(node, group_of[weight], weight),
            group_of[weight]["eps"],
            steps if "Q" in optimizer.state[weight] else num_updates,
        )
        for weight in weights
    ]
    return lambda x: [map_(part) for map_, part in zip(maps, x, strict=True)]


def _decay(node: Node, group: Mapping[str, Any], weight: Tensor) -> float:
    """Returns β₂ of a weight; MARS has another β₂ for vectors."""
    if "betas_1d" in group and weight.ndim < 2:
        return float(group["betas_1d"][1])
    return float(node["variance_decay"])


def _of_weight(
    state: Mapping[str, Any], decay: float, eps: float, steps: int
) -> Callable[[Tensor], Tensor]:
    second = state["exp_avg_sq"] / (1 - decay**steps)
    scale = (second.sqrt() + eps).rsqrt()
    bases = [basis for basis in state.get("Q", []) if len(basis)]
    if not bases:
        return lambda x: scale * x
    left, right = bases
    return lambda x: left @ (scale * (left.T @ x @ right)) @ right.T
