"""2BW in the training loops of Megatron-LM and Megatron-Bridge: see docs/megatron.md."""

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from pipegap.trainer.megatron.schedule import Megatron2BW


def install(*modules: ModuleType, **options: Any) -> None:
    """Lets these modules, `megatron.training.training` of Megatron-LM, train by 2BW.

    Call it before `pretrain`. In Megatron-Bridge the modules are `train`, `optim`, `eval` and
    `pretrain` of `megatron.bridge.training`. `options` are those of `Megatron2BW`.

    Names of theirs are replaced: the optimizer comes with the schedule and steps by it, forwards
    and backwards are those of the schedule, evaluations and checkpoints begin drained, and `train`
    ends so. Sums over all stages that each iteration waits for are left out, which would bring the
    bubble back: success, norm and learning rate are one number on every stage.
    """
    loop = _Loop(options)
    for module in modules:
        for name, replace in REPLACED.items():
            if hasattr(module, name):
                call = getattr(module, name)
                setattr(module, name, wraps(call)(replace(loop, call)))


class _Loop:
    """A training loop, which makes its optimizer when it begins."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.pipeline: Any = None

    def optimizer(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def get_optimizer(config: Any, model: Any, *args: Any, **options: Any) -> Any:
            optimizer = make(config, model, *args, **options)
            self.pipeline = Megatron2BW(model, optimizer, **self.options)
            optimizer.step = self.pipeline.step
            return optimizer

        return get_optimizer

    def schedule(self, get: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *a, **kw: self.pipeline.forward_backward if self.pipeline else get(*a, **kw)

    def drained(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            self.drain()
            return call(*args, **options)

        return called

    def then_drained(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            returned = call(*args, **options)
            self.drain()
            return returned

        return called

    def drain(self) -> None:
        if self.pipeline:
            with self.pipeline.drained():
                pass

    def own(self, reduce: Callable[..., Any]) -> Callable[..., Any]:
        return lambda value, *_, **__: value


REPLACED: dict[str, Callable[[_Loop, Callable[..., Any]], Callable[..., Any]]] = {
    "get_megatron_optimizer": _Loop.optimizer,
    "get_forward_backward_func": _Loop.schedule,
    "evaluate_and_print_results": _Loop.drained,
    "save_checkpoint_and_time": _Loop.drained,
    "train": _Loop.then_drained,
    "logical_and_across_model_parallel_group": _Loop.own,
    "reduce_max_stat_across_model_parallel_group": _Loop.own,
}
"""Name of a training loop's module → what takes its place."""
