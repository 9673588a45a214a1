"""`with FakeGPU() as gpu:` the device `cuda` is there, and every operation on it is looked at.

It sees devices that do not fit, waits of the host, operations that raise under deterministic
algorithms, launches, and bytes. It cannot see numbers, streams, NCCL, graphs of inductor, and
fragmented memory.
"""

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Protocol
from unittest import mock

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from pipegap.trainer.data.batches import Prefetched
from tests.support.fake_cuda import kernels
from tests.support.fake_cuda.parts import told_apart

BLOCK = 512
"""The bytes by which torch's allocator counts."""


class Memory:
    """Counts the storages that live on the GPU."""

    def __init__(self) -> None:
        self.live = self.peak = 0
        self._known: set[int] = set()
        self._lock = threading.RLock()  # a tensor may die in the thread of a backward

    def track(self, tensor: Tensor) -> None:
        if tensor.device.type != "cuda":
            return
        storage = tensor.untyped_storage()
        size, key = -(-storage.nbytes() // BLOCK) * BLOCK, storage._cdata
        with self._lock:
            if key in self._known:
                return
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size)

    def restart(self) -> None:
        """The peak begins anew at what lives now."""
        self.peak = self.live

    def _free(self, key: int, size: int) -> None:
        with self._lock:
            self._known.discard(key)
            self.live -= size


# Names of torch that ask the driver, and what takes their place on a fake GPU.

NAME, BYTES = "NVIDIA H100 80GB HBM3", 85_017_624_576


class Watched(Protocol):
    memory: Memory

    def waited(self, kind: str) -> None: ...


def some_value(tensor: Tensor) -> float:
    """What the host reads from a tensor without numbers."""
    if tensor.dtype == torch.bool:
        return True
    return 0.5 if tensor.is_floating_point() else 1


def replacements(gpu: Watched) -> dict[str, object]:
    """What takes the place of each name while the fake `gpu` is there."""
    memory, pointer = gpu.memory, torch.UntypedStorage.data_ptr
    cuda: dict[str, object] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "empty_cache": lambda: None,
        "get_device_name": lambda device=None: NAME,
        "get_device_properties": lambda device=None: SimpleNamespace(
            total_memory=BYTES, major=9, minor=0
        ),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: None,
        "random.get_rng_state": lambda device=None: torch.get_rng_state(),
        "random.set_rng_state": lambda state, device=None: None,
        "reset_peak_memory_stats": lambda device=None: memory.restart(),
        "max_memory_allocated": lambda device=None: memory.peak,
        "memory_allocated": lambda device=None: memory.live,
        "synchronize": lambda device=None: gpu.waited("synchronize"),
        "current_stream": lambda device=None: _Stream(gpu),
        "Stream": partial(_Stream, gpu),
        "stream": _on_stream,
        "Event": partial(_Event, gpu),
    }

    def tolist(tensor: Tensor) -> Any:
        if tensor.is_cuda:
            gpu.waited("tolist")
        # Error Feedback's factors are 1, and skipped, unless an earlier update is zero.
        values: Any = 1.0 if tensor.is_floating_point() else some_value(tensor)
        for size in reversed(tensor.shape):
            values = [values] * size
        return values

    fake = "torch._subclasses.fake_tensor.FakeTensor."
    return {
        **{f"torch.cuda.{name}": value for name, value in cuda.items()},
        f"{fake}tolist": tolist,
        f"{fake}__deepcopy__": lambda x, memo: memo.setdefault(id(x), x.detach().clone()),
        "torch.Tensor.data_ptr": lambda x: (
            x.untyped_storage().data_ptr() + x.storage_offset() * x.itemsize
        ),
        "torch.UntypedStorage.data_ptr": lambda s: (
            s._cdata if s.device.type in ("cuda", "meta") else pointer(s)
        ),
        "torch.Tensor.pin_memory": lambda x, device=None: x,
        "torch.Tensor.record_stream": lambda x, stream: None,
        "pipegap.trainer.parts.Prefetched": partial(Prefetched, pin=lambda batch: batch),
        "torch.nn.functional.scaled_dot_product_attention": kernels.attention,
        "torch.nn.Module.to": lambda module, device: _moved(module, lambda p: p.to(device)),
        "torch.nn.Module.to_empty": lambda module, *, device: _moved(
            module, partial(torch.empty_like, device=device)
        ),
    }


class _Stream:
    cuda_stream = 0

    def __init__(self, gpu: Watched, *args: object, **options: object) -> None:
        self._gpu = gpu

    def wait_stream(self, other: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record_event(self, event: object = None) -> "_Event":
        return _Event(self._gpu)

    def synchronize(self) -> None:
        self._gpu.waited("synchronize of a stream")


class _Event:
    def __init__(self, gpu: Watched, *args: object, **options: object) -> None:
        self._gpu = gpu

    def record(self, stream: object = None) -> None: ...

    def wait(self, stream: object = None) -> None: ...

    def synchronize(self) -> None:
        self._gpu.waited("synchronize of an event")

    def elapsed_time(self, other: object) -> float:
        return 1.0

    def query(self) -> bool:
        return True


@contextmanager
def _on_stream(stream: object) -> Iterator[None]:
    yield


def _moved(module: nn.Module, move: Callable[[Tensor], Tensor]) -> nn.Module:
    """Torch would swap the tensors of the module in place, which those that are watched forbid."""
    known: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                if id(weight) not in known:
                    known[id(weight)] = nn.Parameter(move(weight.detach()), weight.requires_grad)
                part._parameters[name] = known[id(weight)]
    return module


# The device, and what looks at every operation on it.

PROJECT = Path(__file__).parents[3]
LIBRARIES = ("/pytorch_optimizer/", "/schedulefree/", "/torch/optim/")


class FakeGPU:
    """What operations on the fake device did, by the `part` of the run that they belong to.

    `launches` are also told apart by what the update did: see `parts.PARTS`.
    """

    def __init__(self) -> None:
        self.memory = Memory()
        self.part = ""
        self.doing = ""
        self.waits: Counter[tuple[str, str]] = Counter()
        self.launches: Counter[tuple[str, str]] = Counter()
        self.peaks: dict[str, int] = {}
        self.mixed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._stack = ExitStack()

    def begin(self, part: str) -> None:
        """What follows belongs to `part`; its peak begins at what lives now."""
        self.peaks[self.part] = self.memory.peak
        self.part = part
        self.memory.restart()

    @contextmanager
    def does(self, what: str) -> Iterator[None]:
        """What follows in the context does this."""
        before, self.doing = self.doing, what
        try:
            yield
        finally:
            self.doing = before

    def waited(self, kind: str) -> None:
        """The host waited for the device."""
        self.waits[self.part, f"{kind} at {place()}"] += 1

    def __enter__(self) -> "FakeGPU":
        enter = self._stack.enter_context
        for target, value in replacements(self).items():
            enter(mock.patch(target, value, create=True))
        enter(told_apart(self.does))
        optimizer._foreach_supported_types.append(FakeTensor)
        self._stack.callback(optimizer._foreach_supported_types.remove, FakeTensor)
        enter(FakeTensorMode(allow_non_fake_inputs=True))
        enter(_Watch(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


class _Watch(TorchDispatchMode):
    """Sees every operation, in the thread of a backward too, above the mode that fakes it."""

    def __init__(self, gpu: FakeGPU) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(
        self,
        function: OpOverload,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs, gpu = {**(kwargs or {})}, self._gpu
        if function.namespace == "prim":
            return function(*args, **kwargs)
        base, _ = kernels.names(function)
        is_on_gpu = any(x.is_cuda for x in tree_iter((args, kwargs)) if isinstance(x, Tensor))
        if base == "_local_scalar_dense":
            if is_on_gpu:
                gpu.waited("item")
            return some_value(args[0])
        is_strict = is_on_gpu and torch.are_deterministic_algorithms_enabled()
        if is_strict and kernels.is_refused(function, args):
            gpu.refused[f"{base} at {place()}"] += 1
        if kernels.is_mixed(function, args):
            gpu.mixed[f"several devices in {base} at {place()}"] += 1
        if kwargs.get("generator") is not None:  # a fake tensor is drawn by none
            kwargs["generator"] = None
        try:
            out = function(*args, **kwargs)
        except Exception as error:
            gpu.mixed[f"{str(error).splitlines()[0]} at {place()}"] += 1
            raise
        made = [x for x in tree_iter(out) if isinstance(x, Tensor)]
        if is_on_gpu or any(x.is_cuda for x in made):
            if why := kernels.wait(function, args, kwargs, out):
                gpu.waited(why)
            gpu.launches[gpu.part, gpu.doing] += kernels.launches(base, args)
        for tensor in made:
            tensor.constant = None  # else operations on small constants run on the device for real
            gpu.memory.track(tensor)
        return out


def place() -> str:
    """The innermost line of the project, or of a library of optimizers, that runs now."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if any(library in name for library in LIBRARIES):
            return f"{'/'.join(Path(name).parts[-2:])}:{frame.f_lineno}"
        if name.startswith(str(PROJECT / "trainer")):
            return f"{Path(name).relative_to(PROJECT)}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
