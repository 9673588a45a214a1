"""What one process makes of the cases of `torch_pipeline`: by equations, and as a trial does."""

from functools import partial

import torch

from pipegap.trainer.base.resources import rank_device
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.schedules.recipes import pipedream_2bw
from tests.oracles import corrections, semantics
from tests.support import every_correction, every_optimizer, toy
from tests.support.torch_pipeline import (
    EMBEDDING,
    HEAD,
    OPTIMIZERS,
    Case,
    T,
    Trained,
    batch,
    modules,
    modules_of,
    tokens,
)


def expected(case: Case, num_stages: int, dtype: torch.dtype = torch.float32) -> Trained:
    """The same by the naive equations, in one process, on the device of the first rank."""
    torch.set_num_threads(1)
    device = rank_device(case.device, 0, 1)
    stages = [stage.to(device) for stage in modules_of(case, num_stages, dtype)]
    start, tied = case.synchronous_start, []
    if case.shares == "stages":
        with torch.no_grad():
            head = stages[-1].get_parameter(HEAD)
            head.copy_(stages[0].get_parameter(EMBEDDING))
        names = [name for stage in stages for name, _ in stage.named_parameters()]
        tied = [(names.index(EMBEDDING), names.index(HEAD))]
    if case.correction:
        node = every_correction.settings(case.correction)
        correction = every_correction.reference(case.correction, node)
    else:
        feedback = corrections.Settings(coefficient=case.error_feedback, lag=1)
        correction = corrections.ErrorFeedback(feedback, T)
    peak = OPTIMIZERS[case.optimizer](modules(num_stages)[0]).param_groups[0]["lr"]
    versions, losses = semantics.train(
        stages,
        [1] * num_stages,
        OPTIMIZERS[case.optimizer],
        lambda t: peak * toy.lr_factor(t),
        [tuple(rows.to(device) for rows in batch(t)) for t in range(T)],
        toy.loss,
        lambda t, _: t if t < start else max(start, t - 1),
        correction,
        clip_norm=case.clip_norm,
        microbatches=case.microbatches,
        tied=tied,
    )
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    return {n: w.cpu() for n, w in zip(names, versions[-1], strict=True)}, losses


def of_our_pipeline(case: Case, name: str, num_stages: int) -> Trained:
    """The same by the executor of a trial, with our optimizer of that name."""
    torch.set_num_threads(1)
    shape = {"num_stages": num_stages, "num_microbatches": case.microbatches}
    executor = toy.emulated(
        pipedream_2bw(T, **shape, synchronous_start=0, synchronous_cooldown=0),
        every_optimizer.maker(name, lr=0.02),
        partial(ErrorFeedback, coefficient=case.error_feedback, lag=1),
        case.clip_norm,
        torch.float32,
        batch=tokens,
    )
    updates = toy.run(executor, (0, T))
    versions = [stage.versions for stage in executor._stages]
    weights = {n: w for of in versions for n, w in zip(of.names, of.master, strict=True)}
    return weights, [update.loss for update in updates]


def differences(trained: Trained, reference: Trained) -> list[str]:
    """Names of weights, and numbers of losses, that are not equal to the last bit."""
    (weights, losses), (right, right_losses) = trained, reference
    assert weights.keys() == right.keys()
    assert len(losses) == len(right_losses)
    unequal = [name for name in right if not torch.equal(weights[name], right[name])]
    pairs = enumerate(zip(losses, right_losses, strict=True))
    return unequal + [f"loss {t}" for t, (ours, theirs) in pairs if ours != theirs]
