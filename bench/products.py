"""Products of small matrices by our own kernel, beside torch's, on one thread.

    python -m bench.products [rounds=20]

The sizes are those of `scale=tiny` (128 tokens, width 64, also in stacks, as Muon and SOAP multiply
them) and of `smollm2_135m` with 2,048 tokens. fp32, CPU time of the process in alternating rounds.
"""

import sys
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from bench.timing import cpu_seconds_of, in_turn
from trainer.compiled.products import product

SIZES = (
    *((1, 128, 64, 64), (1, 128, 64, 176), (1, 128, 64, 257)),
    *((4, 64, 64, 64), (4, 64, 64, 176), (4, 176, 176, 64)),
    *((1, 2048, 576, 576), (1, 2048, 576, 1536)),
)
"""Products [stacked, m, k] [stacked, k, n]."""
LAYOUTS = {"a b": (False, False), "a bᵀ": (False, True), "aᵀ b": (True, False)}
"""Which of the two lies transposed in memory: forward, its input's and its weight's gradient."""
WORK = 2e8
"""FLOPs, at least, of what is timed at once."""


def matrices(stacked: int, rows: int, columns: int, is_transposed: bool) -> Tensor:
    """A stack of random matrices."""
    sizes = (columns, rows) if is_transposed else (rows, columns)
    drawn = torch.randn(stacked, *sizes)
    return drawn.mT if is_transposed else drawn


def gflops(
    size: tuple[int, int, int, int], layout: tuple[bool, bool], rounds: int
) -> tuple[float, float]:
    """GFLOP/s of torch's product and of ours, medians."""
    stacked, m, k, n = size
    a, b = matrices(stacked, m, k, layout[0]), matrices(stacked, k, n, layout[1])
    flops = 2 * stacked * m * k * n
    calls = 1 + int(WORK / flops)

    def repeated(multiply: Callable[[Tensor, Tensor], Tensor]) -> None:
        for _ in range(calls):
            multiply(a, b)

    ways = {"torch": partial(repeated, torch.bmm), "ours": partial(repeated, product())}
    seconds = in_turn(ways, rounds, cpu_seconds_of)
    of_torch, of_ours = (flops * calls / median(of) / 1e9 for of in seconds.values())
    return of_torch, of_ours


def main() -> None:
    """Prints the table."""
    given = dict(word.split("=") for word in sys.argv[1:])
    torch.set_num_threads(1)
    print("| stacked × [m, k] [k, n] | in memory | torch, GFLOP/s | ours, GFLOP/s | ours / torch |")
    print("| --- | --- | --- | --- | --- |")
    for size in SIZES:
        for name, layout in LAYOUTS.items():
            of_torch, of_ours = gflops(size, layout, int(given.get("rounds", 20)))
            stacked, m, k, n = size
            cells = f"{of_torch:.0f} | {of_ours:.0f} | {of_ours / of_torch:.2f}"
            print(f"| {stacked} × [{m}, {k}] [{k}, {n}] | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
