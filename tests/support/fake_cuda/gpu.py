"""`with FakeGPU() as gpu:` the device `cuda` is there, and every operation on it is looked at.

It sees devices that do not fit, waits of the host, operations that raise under deterministic
algorithms, launches, and bytes. It cannot see numbers, streams, NCCL, graphs of inductor, and
fragmented memory.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tests.support.fake_cuda import kernels, patches
from tests.support.fake_cuda.memory import Memory
from tests.support.fake_cuda.parts import told_apart

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
        for target, value in patches.of(self).items():
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
            return patches.some_value(args[0])
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
