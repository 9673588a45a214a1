"""CUDA's and NCCL's rules on top of gloo, so that a CPU shows what would hang on GPUs."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import wraps
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

# CUDA's rule about kernels that are loaded late.

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


# NCCL's rules about communicators.

INIT_TIMEOUT = timedelta(seconds=20)
"""How long a rank waits for the others to build a communicator with it."""


class NcclLike:
    """`torch.distributed` for one rank, whose operations obey these rules of NCCL.

    1. A communicator (of a group's collectives, or of two ranks of a group) is built at its first
       operation. That call blocks the rank until all ranks of the communicator have made it, as
       ncclCommInitRank does. Raises TimeoutError (of torch) if they do not come.
    2. A communicator has one queue: a message between two ranks waits for those before it,
       whatever their direction. Here it may carry one direction only, else it raises ValueError.
    3. The collectives of a communicator meet in the order in which each rank calls them. Raises
       ValueError where the n-th one is not the same on all ranks: NCCL would hang or mix them up.
    """

    def __init__(self, store: dist.Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._built: set[str] = set()
        self._called: Counter[str] = Counter()
        self._direction: dict[str, str] = {}
        self._lock = threading.Lock()
        self._isend, self._irecv = dist.isend, dist.irecv
        self._all_reduce, self._broadcast = dist.all_reduce, dist.broadcast

    def isend(
        self, tensor: Tensor, dst: int | None = None, group: Any = None, **of_torch: Any
    ) -> dist.Work | None:
        """See `torch.distributed.isend`. Other keywords are of torch's own schedules, when they
        build their communicators: torch has to know NCCL's rules there."""
        if not of_torch:
            self._message("send", dst, group)
        return self._isend(tensor, dst, group, **of_torch)

    def irecv(
        self, tensor: Tensor, src: int | None = None, group: Any = None, **of_torch: Any
    ) -> dist.Work | None:
        """See `torch.distributed.irecv`, and `isend` above for other keywords."""
        if not of_torch:
            self._message("receive", src, group)
        return self._irecv(tensor, src, group, **of_torch)

    def all_reduce(
        self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, *, group: Any, async_op: bool = False
    ) -> dist.Work | None:
        """See `torch.distributed.all_reduce`."""
        self._collective(f"a sum of {tensor.numel()}", group)
        work: dist.Work | None = self._all_reduce(tensor, op, group=group, async_op=async_op)
        return work

    def broadcast(
        self, tensor: Tensor, src: int, group: Any, async_op: bool = False
    ) -> dist.Work | None:
        """See `torch.distributed.broadcast`."""
        self._collective(f"a broadcast of {tensor.numel()} from rank {src}", group)
        work: dist.Work | None = self._broadcast(tensor, src, group=group, async_op=async_op)
        return work

    def _collective(self, what: str, group: Any) -> None:
        name = f"{group.group_name}/all"
        self._build(name, dist.get_process_group_ranks(group))
        with self._lock:
            self._called[name] += 1
            key = f"{name}/call/{self._called[name]}"
        if self._store.add(f"{key}/calls", 1) == 1:
            self._store.set(key, what)
        elif (other := self._store.get(key).decode()) != what:
            raise ValueError(f"{key} is {what} on rank {self._rank}, and {other} on another one")

    def _message(self, direction: str, peer: Any, group: Any) -> None:
        name = f"{group.group_name}/{min(self._rank, peer)}:{max(self._rank, peer)}"
        if self._direction.setdefault(name, direction) != direction:
            raise ValueError(f"{name} carries messages in both directions")
        self._build(name, [self._rank, peer])

    def _build(self, name: str, members: Sequence[int]) -> None:
        with self._lock:
            if name in self._built:
                return
            self._built.add(name)
        self._store.set(f"{name}/{self._rank}", "here")
        self._store.wait([f"{name}/{member}" for member in members], INIT_TIMEOUT)


@contextmanager
def nccl_like(store: dist.Store, rank: int) -> Iterator[None]:
    """Replaces the functions of `torch.distributed` that the trainer calls, in this process."""
    like = NcclLike(store, rank)
    with ExitStack() as stack:
        stack.enter_context(patch.object(dist, "broadcast", like.broadcast))
        for name in ("isend", "irecv", "all_reduce"):
            function = getattr(like, name)
            for module in (dist, distributed_c10d):  # torch 2.11 asks whether a P2POp has this one
                stack.enter_context(patch.object(module, name, function))
        # torch's P2POp would refuse other functions than its own.
        stack.enter_context(patch.object(distributed_c10d, "_check_op"))
        yield
