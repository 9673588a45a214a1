"""Memory of a rank whose replicas divide the optimizer's states, beside one that keeps them all.

    python -m bench.shard_optimizer [replicas=2]

One stage, 2BW with Error Feedback. Weights are much larger than activations here. The states are
counted exactly, in bytes; the peak is that of the process above what the libraries take, and a plan
says how many bytes it expects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from bench.pipelining import CPU
from trainer.base.resources import peak_memory_bytes, reproducible, reset_peak_memory
from trainer.config.compose import compose
from trainer.config.plan import plan_trial
from trainer.optimizers.state import by_weight
from trainer.parts import build_parts, build_pipelined
from trainer.ranks.groups import Heartbeat, joined
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import Parent

MIB = 2**20
UPDATES = 4
WORDS = (
    *("data=wiki", "model=tiny", "model.hidden_size=768", "model.intermediate_size=2048"),
    *("batch_size=4", "seq_len=64", f"num_updates={UPDATES}", "runner=pipelined"),
    *("pipeline=pipedream_2bw", "correction=error_feedback"),
)
Config = dict[str, Any]


def as_rank(
    store: dist.Store, heartbeat: Heartbeat, send: Callable[[Any], None], config: Config
) -> None:
    """Sends the rank, the bytes of its states and its peak."""
    replicas = config["num_replicas"]
    with (
        reproducible(0, 1),
        joined(store, heartbeat.rank, 1, replicas, CPU, heartbeat, 600) as gang,
    ):
        parts = build_parts(config, UPDATES)
        reset_peak_memory(CPU)
        before = peak_memory_bytes(CPU)
        executor = build_pipelined(config, parts, gang)
        executor.run(0, UPDATES, lambda update: None)
        states = [of["state"] for s in executor._stages for of in by_weight(s.optimizer).values()]
        kept = sum(t.nbytes for of in states for t in of.values() if isinstance(t, Tensor))
        send((gang.rank, kept, peak_memory_bytes(CPU) - before))


def of_ranks(config: Config) -> list[tuple[int, int, int]]:
    """What every rank sent."""
    found: list[tuple[int, int, int]] = []
    run_gang(as_rank, (config,), config["num_replicas"], Parent(found.append, timeout=600))
    return sorted(found)


def main() -> None:
    """Prints the table."""
    replicas = dict(word.split("=") for word in sys.argv[1:]).get("replicas", "2")
    print("| | rank | states, MiB | peak, MiB | plan, MiB |")
    print("| --- | --- | --- | --- | --- |")
    for optimizer in ("adamw", "muon"):
        for divided in ("false", "true"):
            words = (f"optimizer={optimizer}", f"num_replicas={replicas}")
            config = compose([*WORDS, *words, f"shard_optimizer={divided}"])
            plan = plan_trial(config).memory_bytes / MIB
            name = f"{optimizer}, {'divided' if divided == 'true' else 'whole'}"
            for rank, kept, peak in of_ranks(config):
                row = (f"{kept / MIB:.1f}", f"{peak / MIB:.0f}", f"{plan:.0f}")
                print(f"| {name} | {rank} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
