"""Causal attention of one layer in bf16 on a CPU core, forward and backward: products or a kernel.

    python -m bench.attention [rounds=15]

Heads as in the model tiny; the number of tokens is the same at every length.
"""

import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.timing import medians
from trainer.base.resources import reproducible
from trainer.models.layers import in_products

TOKENS, HEADS, KEY_HEADS, SIZE = 2_048, 3, 1, 32
LENGTHS = (64, 128, 256, 512)
kernel = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
CONTENDERS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], torch.dtype]] = {
    "torch's kernel, fp32": (kernel, torch.float32),
    "torch's kernel, bf16": (kernel, torch.bfloat16),
    "products, bf16": (in_products, torch.bfloat16),
}


def step(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype, length: int
) -> Callable[[], None]:
    """A forward and a backward of random queries, keys and values."""
    shapes = [(TOKENS // length, heads, length, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    gradient = torch.randn(shapes[0], dtype=dtype)
    return lambda: attend(q, k, v).backward(gradient)


def main() -> None:
    """Prints the table."""
    given = dict(word.split("=") for word in sys.argv[1:])
    steps = {
        f"{name}, {length}": step(attend, dtype, length)
        for name, (attend, dtype) in CONTENDERS.items()
        for length in LENGTHS
    }
    with reproducible(seed=0, num_threads=1):
        seconds = medians(steps, int(given.get("rounds", 15)))
    heads = ["ms", *(f"{length} tokens" for length in LENGTHS)]
    rows = [
        [name, *(f"{1e3 * seconds[f'{name}, {length}']:.1f}" for length in LENGTHS)]
        for name in CONTENDERS
    ]
    for row in (heads, ["---"] * len(heads), *rows):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
