"""What a microbatch keeps on a device for its backward, counted by a forward without numbers.

The forward runs on the meta device, so that the count follows the model's code; a model has no
formula of its own for it.
"""

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from pipegap.trainer.base.build import build
from pipegap.trainer.base.flat import storage
from pipegap.trainer.models.recipe import LayerByLayer, Recipe

PRODUCTS = {"mm", "bmm", "_grouped_mm", "index_select"}
"""Operations whose operands and results a compiled forward keeps: it computes none of them twice,
and everything between them again in the backward."""
COUNTED = 256
"""Tokens of the one sequence that is counted: what a microbatch keeps grows with its tokens."""
Kept = list[int]


def kept_bytes(config: Mapping[str, Any], num_stages: int) -> tuple[Kept, Kept]:
    """Return the bytes that a microbatch keeps on each stage until its backward, logits aside, and
    those that its backward makes again on the stage, in one layer.

    Compiled, a forward keeps what products and attention read and write, each token's state before
    each norm, and nothing between them: so did an H100 (bench/README.md).
    """
    rows = config["batch_size"] // (config["pipeline"]["num_microbatches"] * config["num_replicas"])
    times = rows * config["seq_len"] / min(config["seq_len"], COUNTED)
    sizes = num_stages, min(config["seq_len"], COUNTED), config["dtype"]
    node, is_compiled = config["model"], bool(config["compile"])
    is_recomputed = bool(node.get("activation_checkpointing"))
    kept = _kept(_text(node), *sizes, is_compiled and not is_recomputed)
    in_forward = [round(times * number) for number, _ in kept]
    if not is_recomputed:
        return in_forward, [0] * num_stages
    whole = _kept(_text({**node, "activation_checkpointing": False}), *sizes, is_compiled)
    return in_forward, [round(times * number / max(1, layers)) for number, layers in whole]


def _text(node: Mapping[str, Any]) -> str:
    return json.dumps(node, sort_keys=True)


@cache
def _kept(
    node: str, num_stages: int, seq_len: int, dtype: str, is_compiled: bool
) -> list[tuple[int, int]]:
    """For each stage the bytes it keeps of one sequence, and the number of its layers."""
    model: Recipe = build(json.loads(node))
    split = model.split(num_stages, seq_len)
    read_in: torch.dtype = getattr(torch, dtype)
    hidden = torch.empty(1, seq_len, model.hidden_size, device="meta", dtype=read_in)
    kept = []
    for index in range(num_stages):
        with torch.device("meta"):
            stage = _in_dtype(model.stage(index, split), read_in)
            x = torch.zeros(1, seq_len, dtype=torch.int64) if index == 0 else hidden
        of_last = index == num_stages - 1
        number = _kept_by(stage, x, is_compiled=is_compiled, returns_logits=of_last)
        kept.append((number, len(stage.layers()) if isinstance(stage, LayerByLayer) else 1))
    return kept


def _in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module with leaves as a trial has them."""
    for part in module.modules():
        if not getattr(part, "reads_master", False):
            for name, weight in part._parameters.items():
                if weight is not None:
                    part._parameters[name] = nn.Parameter(weight.detach().to(dtype))
    return module


def _kept_by(stage: nn.Module, x: Tensor, *, is_compiled: bool, returns_logits: bool) -> int:
    x.requires_grad_(x.is_floating_point())
    living = _Living()
    with _AnyAttention(living.keep), living:
        output = stage(x)
    of_output = [t for t in tree_leaves(output) if isinstance(t, Tensor)] * returns_logits
    return living.bytes_beside(
        [*of_output, x, *stage.parameters()], lambda key: living.share(key) if is_compiled else 1.0
    )


class _Living(TorchDispatchMode):
    """Knows the memory that operations in this context made and that is still in use."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes: dict[int, int] = {}
        self._of_products: set[int] = set()
        self._widened: dict[int, float] = {}

    @override
    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.split("::")[-1]
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        for tensor in made:
            self._note(tensor)
        if name in PRODUCTS:
            operands = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            self._of_products.update(storage(tensor) for tensor in (*operands, *made))
        if name == "_to_copy" and result.itemsize > args[0].itemsize:
            self._widened[storage(result)] = args[0].itemsize / result.itemsize
        return result

    def share(self, key: int) -> float:
        """The share of this memory that a compiled forward keeps in its place."""
        return 1.0 if key in self._of_products else self._widened.get(key, 0.0)

    def bytes_beside(self, others: Sequence[Tensor], share: Callable[[int], float]) -> int:
        """The bytes in use that are not of these tensors, each memory by its share."""
        known = set(map(storage, others))
        return round(
            sum(size * share(key) for key, size in self._bytes.items() if key not in known)
        )

    def keep(self, tensors: Sequence[Tensor]) -> None:
        """Takes these tensors for operands of a product."""
        self._of_products.update(map(storage, tensors))

    def _note(self, tensor: Tensor) -> None:
        memory, key = tensor.untyped_storage(), storage(tensor)
        if key not in self._bytes:
            self._bytes[key] = memory.nbytes()
            weakref.finalize(memory, self._forget, key)

    def _forget(self, key: int) -> None:
        self._bytes.pop(key, None)
        self._of_products.discard(key)
        self._widened.pop(key, None)


class _AnyAttention(TorchFunctionMode):
    """Attention keeps what a fused kernel keeps, where torch's meta device would have all scores.

    `keep` is told what the kernel reads and writes.
    """

    def __init__(self, keep: Callable[[Sequence[Tensor]], None]) -> None:
        super().__init__()
        self._keep = keep

    @override
    def __torch_function__(
        self,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is F.scaled_dot_product_attention:
            output: Tensor = _Fused.apply(*args[:3])
            self._keep((*args[:3], output))
            return output
        return function(*args, **(kwargs or {}))


class _Fused(torch.autograd.Function):
    """A fused attention without numbers: only what it keeps."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, [batch, heads, seq, size], to a tensor like it."""
        output = torch.empty_like(q)
        log_sums = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, output, log_sums)
        return output
