"""The call by which torch learns the shapes of a stage's outputs, without a trace on the stage."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


class Unseen(nn.Module):
    """Calls a module without its hooks, and without a change of its buffers.

    torch calls the module of a stage before the first batch and after evaluations, and a later
    stage on memory that nobody wrote: running statistics would be infinite, and calls be counted.
    A module that cannot be called without its hooks is called with them, as `calls_hooks` says.
    """

    def __init__(self, *, calls_hooks: bool) -> None:
        super().__init__()
        self._calls_hooks = calls_hooks
        self._kinds: list[Any] | None = None  # torch may have them of the user

    def of(self, module: nn.Module) -> "Unseen":
        """This, with the module that it calls."""
        self.module = module
        return self

    @override
    def __getattr__(self, name: str) -> Any:
        """What the module has: a loss may ask the stage for its head."""
        lookup = super().__getattr__
        return lookup(name) if name in ("module", "training") else getattr(lookup("module"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        with ExitStack() as stack:
            for part in self.module.modules():
                copies = {k: b if b is None else b.clone() for k, b in part._buffers.items()}
                stack.enter_context(_other(part._buffers, copies))
            output = self._called(*args, **kwargs)
        self._kinds = _kinds(_tensors(output))
        return output

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        if not self._calls_hooks:
            with ExitStack() as stack:
                for part in self.module.modules():
                    for name in HOOKS:
                        stack.enter_context(_other(getattr(part, name), {}))
                try:
                    return self.module(*args, **kwargs)
                except Exception:  # one that its hooks prevent, or the user's own
                    pass
        return self.module(*args, **kwargs)

    def require_alike(self, output: Any, stage: Any) -> None:
        """Raises RuntimeError if the next stage has no buffers for what the module returned, or
        sends no gradients back that it requires."""
        outputs = _tensors(output)
        if self._kinds not in (None, kinds := _kinds(outputs)):
            raise RuntimeError(
                f"the stage returns {kinds}, and returned {self._kinds} when torch made buffers, "
                "without hooks: neither hooks nor a batch may change shapes and dtypes"
            )
        # Of torch's descriptions: to ask it for the receives would allocate what they fill.
        comes_back = [getattr(info, "tensor_meta", info) for info in stage.grad_recv_info[0]]
        if any(tensor.requires_grad for tensor in outputs) and not any(comes_back):
            raise RuntimeError(
                "the stage requires gradients, and did not when torch made buffers: the next stage "
                "sends none; make the schedule and its stage anew"
            )


def _tensors(output: Any) -> list[Tensor]:
    outputs = output if isinstance(output, tuple | list) else (output,)
    return [one_output for one_output in outputs if isinstance(one_output, Tensor)]


def _kinds(tensors: list[Tensor]) -> list[Any]:
    return [(*tensor.shape, tensor.dtype) for tensor in tensors]


@contextmanager
def _other(content: dict[Any, Any], replacement: dict[Any, Any]) -> Iterator[None]:
    """A context in which a dictionary has another content."""
    content_before = dict(content)
    content.clear()
    content.update(replacement)
    try:
        yield
    finally:
        content.clear()
        content.update(content_before)
