"""What `Schedule2BW` refuses, by one line that names the argument and how to mend it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor
from torch.jit import ScriptModule
from torch.nn.parallel import DistributedDataParallel

from pipegap.trainer.base.errors import BadInput


def require(is_met: object, name: str, value: object, allowed: str) -> None:
    """Raises BadInput for the argument `name` unless the condition is met."""
    if not is_met:
        raise BadInput(name, value, allowed)


def require_usable(stage: Any, num_microbatches: int, loss_fn: object, per_stage: int) -> None:
    """Raises BadInput unless one stage per rank gets enough microbatches and a loss.

    Each later stage is `per_stage` microbatches behind.
    """
    is_alone = not isinstance(stage, Sequence) and stage.group_size == stage.num_stages
    allowed = "must be the only stage of its rank: 2BW has no bubble that interleaving could fill"
    require(is_alone, "stage", stage, allowed)
    least = per_stage * (stage.num_stages - 1) + 1
    allowed = f"must be at least {least}: more of a batch are in flight than it has"
    require(num_microbatches >= least, "n_microbatches", num_microbatches, allowed)
    require(loss_fn is not None, "loss_fn", None, "is required: Schedule2BW trains")


LOOKS_AHEAD = "must not look ahead: the module has weights to evaluate while it is drained"
OPTIONS = {"scale_grads", "args_chunk_spec", "kwargs_chunk_spec", "output_merge_spec"}
"""What Schedule1F1B takes at its construction, beside what is named here, that 2BW does too."""
OF_STEP = {"target", "losses", "return_outputs", "loss_kwargs"}
OF_STEP |= {"arg_mbs", "kwarg_mbs", "target_mbs"}
"""Likewise at a step."""


def require_options(
    of_torch: Callable[..., Any], options: Mapping[str, Any], done: set[str]
) -> None:
    """Raises BadInput for an option of torch's function that is not `done` here.

    An option at its default is allowed, and a name that is not in the signature is left to torch.
    """
    unknown_options = options.keys() - done
    parameters = signature(of_torch).parameters if unknown_options else {}  # it takes .3 ms
    for name in unknown_options & parameters.keys():
        is_default = options[name] is parameters[name].default
        require(is_default, name, options[name], "is an option of torch's that 2BW does not have")


def require_plain(module: nn.Module) -> None:
    """Raises BadInput unless the weights of a module can be replaced by others."""
    scripted = [type(part).__name__ for part in module.modules() if isinstance(part, ScriptModule)]
    allowed = "must not be of TorchScript, which lets nobody replace a weight"
    require(not scripted, "stage", scripted[:1], allowed)
    wrapped = DistributedDataParallel | OptimizedModule
    is_wrapped = any(isinstance(m, wrapped) or m._compiled_call_impl for m in module.modules())
    is_cut = any(isinstance(weight, DTensor) for weight in module.parameters())
    allowed = "is required for a module that is compiled, sharded or of DDP: two copies made before"
    require(not is_wrapped and not is_cut, "twins", None, f"{allowed} and wrapped alike")


def require_twins(newest: nn.Module, twins: Sequence[nn.Module]) -> None:
    """Raises BadInput unless the two twins have the parts and weights of the module, by name."""
    every = newest, *twins
    shapes = [{n: w.shape for n, w in module.named_parameters()} for module in every]
    parts = [[n for n, _ in module.named_modules()] for module in every]
    is_met = shapes == 3 * shapes[:1] and parts == 3 * parts[:1]
    allowed = "must be two modules with the parts and weights of the stage's"
    require(is_met, "twins", len(twins), allowed)


def require_trainable(update: object, newest: Iterable[Tensor]) -> None:
    """Raises BadInput without an `update`, or if weights are updated in another place."""
    allowed = "is required: a function that steps the optimizer"
    require(callable(update), "update", update, allowed)
    allowed = "must not step in the backward (OptimizersInBackward): its gradient is late"
    is_hooked = any(weight._post_accumulate_grad_hooks for weight in newest)
    require(not is_hooked, "optimizer", "a hook of a weight", allowed)


def require_eager(device: torch.device) -> None:
    """Raises RuntimeError while a CUDA graph is captured."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("Schedule2BW computes on two sets of weights in turn: no CUDA graphs")


SCALED, UNTIED, UNCORRECTED = range(3)
FLAWS: Sequence[Callable[[], Exception]] = (
    lambda: BadInput(
        "loss_fn",
        "GradScaler.scale",
        "must not scale: the clip and the update come a batch later; use bf16 without it",
    ),
    lambda: RuntimeError("a tied weight got no gradient on one of its stages"),
    lambda: RuntimeError("a correction of gradients needs one of every weight that requires one"),
)
"""What one rank alone can find: the sum of norms tells the others (`LateSums.report`)."""


class Replaced:
    """A context, to be entered at any time, in which an attribute has another value."""

    def __init__(self, owner: object, name: str, value: object) -> None:
        self._owner, self._name, self._value = owner, name, value

    def __enter__(self) -> None:
        self._present = getattr(self._owner, self._name)
        setattr(self._owner, self._name, self._value)

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._name, self._present)


def unscaled(report: Callable[[], object]) -> Replaced:
    """Scales no loss in the context, and makes a `report` of each GradScaler that would.

    The scale would be another one at the update, a batch later, and the norm over all stages knows
    none. Only the last rank has a loss.
    """

    def noted(scaler: GradScaler, outputs: Any) -> Any:
        if scaler.is_enabled():
            report()
        return outputs

    return Replaced(GradScaler, "scale", noted)
