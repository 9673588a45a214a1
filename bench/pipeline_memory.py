"""Peak memory of each rank: 2BW over flushed 1F1B, and over the number of batches.

    python -m bench.pipeline_memory

Each case has a gang of its own, so nothing is left of the one before. Weights are much larger than
activations here, so what a delay adds is sets of weights and gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from bench.pipelining import CPU, RANKS, prepare
from trainer.base.resources import peak_memory_bytes, reproducible, reset_peak_memory
from trainer.parts import build_pipelined
from trainer.ranks.groups import Heartbeat, joined
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import Parent

MIB = 2**20
WIDE = ("model.hidden_size=768", "model.intermediate_size=2048", "model.num_layers=4")
M = 4


def as_rank(
    store: dist.Store, heartbeat: Heartbeat, send: Callable[[Any], None], name: str, updates: int
) -> None:
    """Memory of this rank above what the libraries take."""
    with reproducible(0, 1), joined(store, heartbeat.rank, RANKS, 1, CPU, heartbeat, 600) as gang:
        config, parts = prepare(M, name, *WIDE)
        reset_peak_memory(CPU)
        before = peak_memory_bytes(CPU)
        executor = build_pipelined(config, parts, gang)
        weights = sum(weight.nbytes for s in executor._stages for weight in s.versions.master)
        executor.run(0, updates, lambda update: None)
        send((gang.place, weights, peak_memory_bytes(CPU) - before))


def peaks(name: str, updates: int) -> list[tuple[int, int, int]]:
    """(rank, bytes of its weights, bytes at its peak)."""
    found: list[tuple[int, int, int]] = []
    run_gang(as_rank, (name, updates), RANKS, Parent(found.append, timeout=600))
    return sorted(found)


def main() -> None:
    """Prints the table."""
    print("| | batches | rank | weights, MiB | peak, MiB | sets of weights |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in ("sync", "pipedream_2bw"):
        for updates in (3, 12, 36):
            for rank, weights, peak in peaks(name, updates):
                print(
                    f"| {name} | {updates} | {rank} | {weights / MIB:.0f} | {peak / MIB:.0f} "
                    f"| {peak / weights:.2f} |"
                )


if __name__ == "__main__":
    main()
