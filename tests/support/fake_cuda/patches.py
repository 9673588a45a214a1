"""Names of torch that ask the driver, and what takes their place on a fake GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pipegap.trainer.data.batches import Prefetched
from tests.support.fake_cuda import kernels
from tests.support.fake_cuda.memory import Memory

NAME, BYTES = "NVIDIA H100 80GB HBM3", 85_017_624_576


class Watched(Protocol):
    memory: Memory

    def waited(self, kind: str) -> None: ...


def some_value(tensor: Tensor) -> float:
    """What the host reads from a tensor without numbers."""
    if tensor.dtype == torch.bool:
        return True
    return 0.5 if tensor.is_floating_point() else 1


def of(gpu: Watched) -> dict[str, object]:
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
