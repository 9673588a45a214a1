"""What cannot be delayed is refused: each check raises BadInput in one line that names the key."""

from __future__ import annotations

from torch.optim import Optimizer

from trainer.base.errors import BadInput
from trainer.corrections.none import NoCorrection
from trainer.optimizers.averaging import Averages
from trainer.optimizers.observing import Observer


def require_plain(optimizer: object, wrapper: type[Optimizer]) -> None:
    """It is a torch optimizer, no `wrapper` of one, and takes all its gradients in `step`."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise BadInput("optimizer", name, "must be a torch.optim.Optimizer")
    if isinstance(optimizer, wrapper):
        raise BadInput("optimizer", name, "is delayed already: pass the optimizer that it wraps")
    if isinstance(optimizer, Observer):
        allowed = "takes gradients of its own beside those of step(): only trials can delay it"
        raise BadInput("optimizer", name, allowed)
    if hasattr(optimizer, "eval") and not isinstance(optimizer, Averages):
        allowed = (
            "moves its weights in eval(): wrap it by trainer.optimizers.averaging.ScheduleFree"
        )
        raise BadInput("optimizer", name, allowed)


def require_options(
    keep: str, clip_norm: float | None, correction: object, num_updates: int | None
) -> None:
    """They are allowed, each for itself; see `DelayedOptimizer`."""
    if keep not in ("weights", "gradients"):
        raise BadInput("keep", keep, "must be 'weights' or 'gradients'")
    if clip_norm is not None and not clip_norm > 0:
        raise BadInput("clip_norm", clip_norm, "must be larger than 0, or None to clip nothing")
    if correction is not None and num_updates is None:
        allowed = "is required with a correction, which is made for a number of updates"
        raise BadInput("num_updates", None, allowed)


def require_fitting(
    correction: NoCorrection, optimizer: Optimizer, keep: str, coefficient: object
) -> None:
    """The correction, of that coefficient, goes with the optimizer and with `keep`."""
    if correction.needs_update and isinstance(optimizer, Averages):
        allowed = "must be 0 with an optimizer that averages its weights, not its updates"
        raise BadInput("error_feedback", coefficient, allowed)
    if correction.reads_ahead and keep == "gradients":
        allowed = "must be 'weights' with a correction that predicts them"
        raise BadInput("keep", keep, allowed)
