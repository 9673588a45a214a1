"""The update as a value: u_t = W(t) − optimizer(W(t)); and the corrected one, W(t) → W(t + 1)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipegap.trainer.base.flat import cloned, wholes
from pipegap.trainer.base.resources import random_state, restore_random_state
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers import state as optimizer_state
from pipegap.trainer.optimizers.hyperball import on_spheres
from pipegap.trainer.optimizers.joined import Joined
from pipegap.trainer.stages.probe import NoProbe

Weights = Sequence[nn.Parameter]
Gradients = Sequence[Tensor | None]
"""One per weight; the optimizer leaves a weight alone that has none."""


def corrected_update(
    optimizer: Optimizer,
    correction: NoCorrection,
    weights: Weights,
    gradients: Gradients,
    delays: Sequence[int],
    probe: NoProbe,
) -> Sequence[Tensor]:
    """Turns `weights` from W(t) into W(t + 1), in place; the gradients have these `delays`.

    Returns what late reads of version t + 1 see, if the correction `reads_ahead`.
    """
    probe.before(weights)
    update: Sequence[Tensor] = []
    if correction.needs_update or probe.needs_update:  # else u_t would cost a copy for nothing
        update = update_of(optimizer, weights, gradients)
    else:
        step(optimizer, weights, gradients)
    with torch.no_grad():
        probe.stepped(update)
        with on_spheres([optimizer]):
            correction.apply(weights, update, delays)
        probe.applied(weights)
        return correction.ahead(weights, update)


def step(optimizer: Optimizer, weights: Weights, gradients: Gradients) -> None:
    """Steps `weights` in place by one gradient per weight; the optimizer has no other weights.

    A gradient is lent to its weight for the step, unless it is the weight's own.
    """
    if isinstance(optimizer, Joined):
        optimizer.step_by(gradients)
        return
    pairs = zip(weights, gradients, strict=True)
    own = [(weight, weight.grad) for weight, gradient in pairs if weight.grad is not gradient]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    optimizer.step()
    for weight, gradient in own:
        weight.grad = gradient


def update_of(optimizer: Optimizer, weights: Weights, gradients: Gradients) -> Sequence[Tensor]:
    """Steps `weights` in place and returns u, one tensor per weight: what was subtracted."""
    update = cloned(weights)
    step(optimizer, weights, gradients)
    with torch.no_grad():
        torch._foreach_sub_(*wholes(update, weights))
    return update


def dry_update(
    optimizer: Optimizer, weights: Weights, gradients: Sequence[Tensor]
) -> Sequence[Tensor]:
    """What `update_of` would return; restores weights, optimizer and generators exactly."""
    device = weights[0].device
    randomness = random_state(device)
    state = optimizer_state.copied(optimizer_state.by_weight(optimizer))
    update = cloned(weights)
    step(optimizer, weights, gradients)
    with torch.no_grad():  # tensor by tensor: another copy of all might not fit
        for now, start in zip(*wholes(weights, update), strict=True):
            change = start - now
            now.copy_(start)
            start.copy_(change)
    optimizer_state.adopt(optimizer, state)  # another copy might not fit
    restore_random_state(randomness, device)
    return update
