"""The update: W(t) → W(t + 1), by the step u_t of an optimizer and what a correction makes of it.

Every update is made here: those of trials, of `DelayedOptimizer` and of `Schedule2BW`; but a graph
makes those of a compiled trial (`trainer.compiled.stage`), which tests hold to these.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipegap.trainer.base.flat import cloned, local_parts
from pipegap.trainer.base.resources import random_state, restore_random_state
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers import state as optimizer_state
from pipegap.trainer.optimizers.hyperball import on_spheres
from pipegap.trainer.stages.probe import NoProbe

Weights = Sequence[nn.Parameter]
Gradients = Sequence[Tensor | None]
"""One per weight; the optimizer leaves a weight alone that has none."""
Step = Callable[[], Iterable[Optimizer]]
"""Steps weights by their gradients, in place, and returns the optimizers that did."""


def corrected_update(
    step: Step,
    correction: NoCorrection,
    weights: Weights,
    delays: Sequence[int],
    *,
    old_weights: Sequence[Tensor] = (),
    probe: NoProbe | None = None,
) -> Sequence[Tensor]:
    """Turns `weights` from W(t) into W(t + 1), in place; their gradients have these `delays`.

    `old_weights` is W(t) too, if the caller keeps it in other memory: then no copy is made here.
    Returns the weights that late reads of version t + 1 see, if the correction `reads_ahead`.
    """
    probe = probe or NoProbe()
    probe.before(weights)
    needs_update = correction.needs_update or probe.needs_update
    previous = old_weights or (cloned(weights) if needs_update else ())
    optimizers = step()
    with torch.no_grad():
        # u_t takes the place of the copy of W(t), which nobody else has.
        update = change(previous, weights, in_place=not old_weights) if needs_update else ()
        probe.stepped(update)
        # A correction moves the weights after the step: those on a sphere must return to it.
        with on_spheres(optimizers if correction.moves_weights else ()):
            correction.apply(weights, update, delays)
        probe.applied(weights)
        return correction.ahead(weights, update)


@torch.no_grad()
def look_ahead(
    optimizer: Optimizer, correction: NoCorrection, weights: Weights, update: int, rate: float
) -> None:
    """Lets the correction turn W(t + 1), made by `update`, into what is read and stepped from next.

    The rate was `rate` times its peak.
    """
    if correction.looks_ahead:
        with on_spheres([optimizer]):
            correction.look_ahead(weights, update, rate)


def change(previous: Sequence[Tensor], weights: Weights, *, in_place: bool) -> Sequence[Tensor]:
    """u, one tensor per weight: what was subtracted. It may be made `in_place` of W(t)."""
    old, new = local_parts(previous), local_parts(weights)
    if not in_place:
        return torch._foreach_sub(old, new)
    torch._foreach_sub_(old, new)
    return previous


def step(optimizer: Optimizer, weights: Weights, gradients: Gradients) -> list[Optimizer]:
    """Steps `weights` in place by one gradient per weight; the optimizer has no other weights.

    A gradient is lent to its weight for the step, unless it is the weight's own. Returns the
    optimizer, as a `Step` does.
    """
    pairs = [*zip(weights, gradients, strict=True)]
    gradients_before = [(weight, weight.grad) for weight, g in pairs if weight.grad is not g]
    for weight, gradient in pairs:
        weight.grad = gradient
    optimizer.step()
    for weight, gradient in gradients_before:
        weight.grad = gradient
    return [optimizer]


def dry_update(
    optimizer: Optimizer, weights: Weights, gradients: Sequence[Tensor]
) -> Sequence[Tensor]:
    """The change that a step would make; restores weights, optimizer and generators exactly."""
    device = weights[0].device
    randomness = random_state(device)
    state = optimizer_state.copied(optimizer_state.by_weight(optimizer))
    update = cloned(weights)
    step(optimizer, weights, gradients)
    with torch.no_grad():  # tensor by tensor: another copy of all might not fit
        for weight, start in zip(weights, update, strict=True):
            moved = start - weight
            weight.copy_(start)
            start.copy_(moved)
    optimizer_state.adopt(optimizer, state)  # another copy might not fit
    restore_random_state(randomness, device)
    return update
