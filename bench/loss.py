"""Peak memory and time of a model's head and loss, computed as one and apart, on a CPU.

    python -m bench.loss [rounds=3] [tokens=4096]

SmolLM2-135M's head: 49,152 words of width 576. Each setting has a process of its own, and the
table has the peak of its resident memory above that before the head's products, and what a plan
counts.
"""

import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median

import torch

from bench.timing import cpu_seconds_of
from trainer.base.build import build
from trainer.config.compose import compose
from trainer.config.memory import loss_bytes
from trainer.models.loss import Unprojected, cross_entropy

CHUNKS = (None, 4096, 1024, 256)
DTYPES = ("float32", "bfloat16")
MIB = 2**20


def measured(chunk: int | None, dtype: str, tokens: int, rounds: int) -> tuple[float, float]:
    """MiB at the peak, and seconds of CPU of forward and backward."""
    torch.set_num_threads(1)
    kind = getattr(torch, dtype)
    hidden = torch.randn(1, tokens, 576).to(kind).requires_grad_()
    head = torch.randn(49152, 576).to(kind).requires_grad_()
    targets = torch.randint(0, 49152, (1, tokens))
    head.grad = torch.zeros_like(head)  # in memory anyway
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def run() -> None:
        if chunk is None:
            cross_entropy(hidden @ head.T, targets).backward()
        else:
            cross_entropy(Unprojected(hidden, head, chunk), targets).backward()

    seconds = [cpu_seconds_of(run) for _ in range(rounds)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (peak - before) * 1024 / MIB, median(seconds)


def counted(chunk: int | None, dtype: str, tokens: int) -> float:
    """The MiB that a plan counts for head and loss."""
    setting = ("num_updates=1", "batch_size=1", f"seq_len={tokens}", f"dtype={dtype}")
    config = compose(["model=smollm2_135m", "data=fineweb_edu", *setting])
    config["model"]["loss_chunk"] = chunk
    return loss_bytes(config, build(config["model"])) / MIB


def main() -> None:
    """Prints the table."""
    given = dict(word.split("=") for word in sys.argv[1:])
    tokens, rounds = int(given.get("tokens", "4096")), int(given.get("rounds", "3"))
    print("| tokens at a time | dtype | peak, MiB | counted by a plan | s of CPU |")
    print("| --- | --- | --- | --- | --- |")
    for dtype in DTYPES:
        for chunk in CHUNKS:
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                peak, seconds = process.submit(measured, chunk, dtype, tokens, rounds).result()
            known = counted(chunk, dtype, tokens)
            name = f"{chunk:,}" if chunk else "all, apart"
            print(f"| {name} | {dtype} | {peak:,.0f} | {known:,.0f} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
