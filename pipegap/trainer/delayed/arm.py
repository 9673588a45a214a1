"""What a delayed optimizer may be made of: its pipeline and correction, as a config names them."""

import ast
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from textwrap import dedent
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from pipegap.trainer.base.build import build, published
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.flat import local
from pipegap.trainer.base.ranges import MAX_COUNT
from pipegap.trainer.config.identity import is_number
from pipegap.trainer.config.schema import check_choice
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers.averaging import averages
from pipegap.trainer.schedules.operations import Schedule

Node = dict[str, Any]
MakeCorrection = Callable[..., NoCorrection]
MAX_DELAY = 4_096
STEPS_COPIES = "must be 0 where an optimizer steps copies of the weights: they get no correction"


def pipeline_node(delay: int, start: float, cooldown: float) -> Node:
    """The pipeline of a trial with this delay, in one stage; a delay of 1 is PipeDream-2BW's."""
    _check_count("delay", delay, MAX_DELAY)
    _check_phase("synchronous_start", start)
    _check_phase("synchronous_cooldown", cooldown)
    # One stage of one microbatch: the loop computes batch by batch.
    cut = {"num_stages": 1, "num_microbatches": 1}
    if delay == 0:
        return {"_target_": "trainer.schedules.sync", **cut}
    cut |= {"synchronous_start": start, "synchronous_cooldown": cooldown}  # type: ignore[dict-item]
    if delay == 1:
        return {"_target_": "trainer.schedules.pipedream_2bw", **cut}
    return {"_target_": "trainer.schedules.constant_delay", "delay": delay, **cut}


def schedule_of(pipeline: Node, num_updates: int | None) -> Schedule:
    """The schedule that counts the delays. Raises BadInput if phases need the number of updates."""
    start, cooldown = (pipeline.get(f"synchronous_{name}", 0) for name in ("start", "cooldown"))
    if num_updates is not None:
        _check_count("num_updates", num_updates, MAX_COUNT, least=1)
    elif cooldown or isinstance(start, float):
        allowed = "is required for a cooldown, and for a start that is a share of all updates"
        raise BadInput("num_updates", None, allowed)
    # Without a cooldown no delay depends on the number of updates, so the largest one serves.
    return build(pipeline, num_updates or MAX_COUNT)


def correction_node(error_feedback: float, correction: MakeCorrection | None) -> Node:
    """The correction as a config names it: Error Feedback's λ, or another class with its options.

    Raises BadInput for a wrong λ, for a class that is none, and for missing or unknown options.
    """
    if correction is not None:
        return _checked(correction)
    if not is_number(error_feedback) or not 0 <= error_feedback < math.inf:
        raise BadInput("error_feedback", error_feedback, "must be a number, 0 (none) or larger")
    if error_feedback == 0:
        return _checked(NoCorrection)
    return _checked(partial(ErrorFeedback, coefficient=float(error_feedback), lag=1))


def _checked(correction: MakeCorrection) -> Node:
    factory, options = correction, {}
    if isinstance(correction, partial) and not correction.args:
        factory, options = correction.func, correction.keywords
    if not (inspect.isclass(factory) and issubclass(factory, NoCorrection)):
        allowed = "must be a class like those of trainer.corrections, or functools.partial of one"
        raise BadInput("correction", correction, f"{allowed} and its options")
    address = published(f"{factory.__module__}.{factory.__qualname__}")
    return check_choice("correction", {"_target_": address, **options})


def _check_count(name: str, value: object, most: int, least: int = 0) -> None:
    # True and False are ints of Python.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadInput(name, value, f"must be an int from {least} to {most}, in updates")


def _check_phase(name: str, value: object) -> None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
    if not is_count and not (isinstance(value, float) and 0 <= value <= 1):
        allowed = "must be a number of updates (an int) or a share of all updates (0.0 to 1.0)"
        raise BadInput(name, value, allowed)


def require_plain(optimizer: object, wrapper: type[Optimizer], delay: int) -> None:
    """Raises BadInput unless it is a plain torch optimizer: no `wrapper` of one, and one that takes
    all its gradients in `step`, as they are there before."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise BadInput("optimizer", name, "must be a torch.optim.Optimizer")
    if isinstance(optimizer, wrapper):
        raise BadInput("optimizer", name, "is delayed already: pass the optimizer that it wraps")
    if needs_arguments(optimizer):
        allowed = "needs a closure, or more, in step(): it takes other gradients than a batch's one"
        raise BadInput("optimizer", name, allowed)
    recorded = [group for group in optimizer.param_groups if group.get("differentiable")]
    if delay and any(weight.requires_grad for group in recorded for weight in group["params"]):
        raise BadInput("differentiable", True, "must be False with a delay: no step is recorded")


def require_options(
    keep: str, clip_norm: float | None, correction: object, num_updates: int | None
) -> None:
    """Raises BadInput for an option of `DelayedOptimizer` that is not allowed."""
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
    """Raises BadInput if the correction does not go with the optimizer or with `keep`."""
    if correction.needs_update and averages(optimizer):
        allowed = "must be 0 with an optimizer that averages its weights, not its updates"
        raise BadInput("error_feedback", coefficient, allowed)
    if correction.reads_ahead and keep == "gradients":
        allowed = "must be 'weights' with a correction that predicts them"
        raise BadInput("keep", keep, allowed)


def require_no_masters(
    optimizer: Optimizer, stepped: Iterable[Tensor], coefficient: object
) -> None:
    """Raises BadInput if the optimizer, which has `stepped` these weights, has them in fp32 too.

    Its next step begins at those masters, as that of apex's and of Transformer Engine's FusedAdam
    with `master_weights`: what a correction does to the weights between the steps would be lost.
    """
    narrow = [weight for weight in stepped if weight.dtype in (torch.bfloat16, torch.float16)]
    # Found by their values, wherever the optimizer has them: each library names them otherwise.
    tensors = [t for t in tree_leaves(vars(optimizer)) if isinstance(t, Tensor)]
    if narrow and all(any(_is_master(t, weight) for t in tensors) for weight in narrow):
        raise BadInput("error_feedback", coefficient, STEPS_COPIES)


def _is_master(tensor: Tensor, weight: Tensor) -> bool:
    is_wider = tensor.dtype.is_floating_point and tensor.itemsize > weight.itemsize
    if not is_wider or tensor.shape != weight.shape:
        return False
    return torch.equal(local(tensor).to(weight.dtype), local(weight))


def refuse_without_gradients(optimizer: Optimizer, weights: Iterable[Tensor]) -> None:
    """Raises BadInput, of an optimizer no weight of which has had a gradient by a late update."""
    if any(weight.numel() for weight in weights):  # of a shard without entries nothing is expected
        allowed = "has no weight with a gradient, so nothing would be delayed: pass one of the "
        allowed += "model's own weights, which steps in step(), not in the backward (layer-wise)"
        raise BadInput("optimizer", type(optimizer).__name__, allowed)


@contextmanager
def second_derivatives_refused() -> Iterator[None]:
    """Turns the error of a step by gradients that have a graph into BadInput.

    The graph is of older weights than those that are stepped: an optimizer that derives the
    gradients again, as AdaHessian does, finds that they have changed.
    """
    try:
        yield
    except RuntimeError as error:
        allowed = "must be False with a delay: weights have changed since this graph was made; "
        allowed += "use delay=0, or an optimizer that takes no second derivatives"
        raise BadInput("create_graph", True, allowed) from error


def needs_arguments(optimizer: Optimizer) -> bool:
    """Whether `step()` alone must fail, of the optimizer or of one that it has others step by.

    Either its signature says so, or its text: a `step` that calls its closure and never asks
    whether there is one, but to raise an error, cannot go without.
    """
    step = inspect.unwrap(type(optimizer).step)  # torch puts a profiler and hooks around it
    [_, *parameters] = inspect.signature(step).parameters.values()  # without self
    variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    if any(p.default is p.empty and p.kind not in variadic for p in parameters):
        return True
    inner_optimizers = (inner for inner in vars(optimizer).values() if isinstance(inner, Optimizer))
    return _calls_unasked(step) or any(map(needs_arguments, inner_optimizers))


def _calls_unasked(step: Callable[..., Any]) -> bool:
    try:
        tree = ast.parse(dedent(inspect.getsource(step)))
    except (OSError, TypeError, SyntaxError):  # there is no text to read
        return False
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    conditions = [node for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp)]
    # `if closure is None: raise …` does not count: such a step cannot go without a closure.
    conditions_asked = [
        part
        for node in conditions
        if isinstance(node, ast.IfExp) or not isinstance(node.body[-1], ast.Raise)
        for part in ast.walk(node.test)
    ]
    return any(map(_is_closure, calls)) and not any(map(_is_closure, conditions_asked))


def _is_closure(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "closure"
