"""CUDA's rule about kernels that are loaded late, on top of gloo: a CPU shows what would hang."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed import distributed_c10d

OF_2BW = (
    "torch.distributed.pipelining.stage._PipelineStageBase.forward_one_chunk",
    "torch.distributed.pipelining.stage._PipelineStageBase.backward_one_chunk",
    "pipegap.trainer.torch_pipelining.late_update.norms_of",
    "pipegap.trainer.torch_pipelining.late_update.LateUpdate.__call__",
)
"""What launches kernels in `Schedule2BW`."""
PASSES = (
    "pipegap.trainer.stages.stage.Stage.forward",
    "pipegap.trainer.stages.stage.Stage.backward_input",
    "pipegap.trainer.stages.stage.Stage.backward_weights",
)
"""What launches kernels in a trial, the same ones for every batch."""
BETWEEN_PASSES = (
    "pipegap.trainer.stages.stage.Stage.update",
    "pipegap.trainer.stages.stage.Stage.evaluate",
)
"""Likewise; an optimizer may do something new in a later update."""


class Begun:
    """A message or a sum for which several threads may wait, one after the other."""

    def __init__(self, work: dist.Work) -> None:
        self._work, self._lock, self._has_ended = work, threading.Lock(), False

    def wait(self, timeout: object = None) -> bool:
        """See `torch.distributed.Work`."""
        with self._lock:
            if not self._has_ended:
                self._work.wait()
                self._has_ended = True
        return True

    def is_completed(self) -> bool:
        """Whether somebody has waited for it: gloo does not tell more."""
        return self._has_ended


class Context:
    """The GPU of one rank, where a message is a kernel that runs until its peer's has begun.

    CUDA loads a kernel at its first launch (CUDA_MODULE_LOADING=LAZY, its default; libraries of
    products do so anyway). That launch waits until all that runs has ended, and every other call of
    the process waits for it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._running: list[Begun] = []
        self._loaded: set[str] = set()

    def starting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function of torch.distributed that starts a message or a sum."""

        @wraps(call)
        def start(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                work = call(*args, **kwargs)
                if work is None:
                    return None
                self._running.append(Begun(work))
                return self._running[-1]

        return start

    def launching(self, name: str, *, always: bool) -> Callable[..., Any]:
        """The function of this name, which loads kernels at its first call, or at every one."""
        function = resolve_name(name)

        @wraps(function)
        def launch(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                if always or name not in self._loaded:
                    self._loaded.add(name)
                    for work in self._running:
                        work.wait()
                    self._running.clear()
            return function(*args, **kwargs)

        return launch


@contextmanager
def lazy_kernels(at_first: Sequence[str] = (), always: Sequence[str] = ()) -> Iterator[None]:
    """Replaces functions of torch.distributed, and those of these names, in this process.

    They load kernels at the first call or at every one.
    """
    context = Context()
    with ExitStack() as stack:
        for name in ("isend", "irecv", "all_reduce", "broadcast"):
            call = context.starting(getattr(dist, name))
            for module in (dist, distributed_c10d):
                stack.enter_context(patch.object(module, name, call))
        for name in (*at_first, *always):
            stack.enter_context(patch(name, context.launching(name, always=name in always)))
        yield
