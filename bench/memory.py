"""Peak memory of each rank of a gang, of which nothing is left when the next one is measured.

    python -m bench.memory [tables=delay,replicas] [replicas=2]

`delay`: 2BW over flushed 1F1B, and over the number of batches. `replicas`: replicas that divide the
optimizer's states beside replicas that keep all of them, one stage, 2BW with Error Feedback; the
states are counted in bytes, and a plan says how many bytes it expects. Weights are much larger than
activations in both. A peak is resident memory above that of the process before the model.
"""

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from bench.ranks import CPU, RANKS, Send, on_ranks, prepare
from trainer.base.resources import peak_memory_bytes, reset_peak_memory
from trainer.config.compose import compose
from trainer.config.plan import plan_trial
from trainer.optimizers.state import by_weight
from trainer.parts import Parts, build_parts, build_pipelined
from trainer.ranks.groups import Gang
from trainer.stages.stage import Stage

MIB = 2**20
MICROBATCHES = 4
WIDE = ("model.hidden_size=768", "model.intermediate_size=2048", "model.num_layers=4")
UPDATES = 4
REPLICAS = (
    *("data=wiki", "model=tiny", *WIDE, "batch_size=4", "seq_len=64", f"num_updates={UPDATES}"),
    *("runner=pipelined", "pipeline=pipedream_2bw", "correction=error_feedback"),
)
Config = dict[str, Any]
Row = tuple[int, int, int]
"""A rank, the bytes of its weights or states, and its peak in bytes."""


def train(
    gang: Gang, config: Config, parts: Parts, updates: int, size: Callable[[Stage], int]
) -> Row:
    """Trains some updates; returns this rank's row, with the size of its stages."""
    reset_peak_memory(CPU)
    before = peak_memory_bytes(CPU)
    executor = build_pipelined(config, parts, gang)
    executor.run(0, updates, lambda update: None)
    return gang.rank, sum(map(size, executor._stages)), peak_memory_bytes(CPU) - before


def with_delay(gang: Gang, send: Send, pipeline: str, updates: int) -> None:
    """Sends the row of this rank, with the bytes of its weights."""
    config, parts = prepare(MICROBATCHES, pipeline, *WIDE)
    send(train(gang, config, parts, updates, size_of_weights))


def with_replicas(gang: Gang, send: Send, config: Config) -> None:
    """Sends the row of this rank, with the bytes of its optimizer's states."""
    send(train(gang, config, build_parts(config, UPDATES), UPDATES, size_of_states))


def size_of_weights(stage: Stage) -> int:
    """Bytes of the newest weights."""
    return sum(weight.nbytes for weight in stage.versions.master)


def size_of_states(stage: Stage) -> int:
    """Bytes of the tensors that the optimizer keeps."""
    states = [entry["state"] for entry in by_weight(stage.optimizer).values()]
    return sum(t.nbytes for state in states for t in state.values() if isinstance(t, Tensor))


def delay_table() -> None:
    """Prints a row for each schedule, number of batches and rank."""
    print("| | batches | rank | weights, MiB | peak, MiB | sets of weights |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in ("sync", "pipedream_2bw"):
        for updates in (3, 12, 36):
            rows: list[Row] = []
            on_ranks(with_delay, (name, updates), rows.append, num_stages=RANKS)
            for rank, weights, peak in sorted(rows):
                mib = f"{weights / MIB:.0f} | {peak / MIB:.0f}"
                print(f"| {name} | {updates} | {rank} | {mib} | {peak / weights:.2f} |", flush=True)


def replicas_table(replicas: int) -> None:
    """Prints a row for each optimizer, way to keep states, and rank."""
    print("| | rank | states, MiB | peak, MiB | plan, MiB |")
    print("| --- | --- | --- | --- | --- |")
    for optimizer in ("adamw", "muon"):
        for way, divided in (("whole", "false"), ("divided", "true")):
            words = (f"optimizer={optimizer}", f"num_replicas={replicas}")
            config = compose([*REPLICAS, *words, f"shard_optimizer={divided}"])
            plan = plan_trial(config).memory_bytes / MIB
            rows: list[Row] = []
            on_ranks(with_replicas, (config,), rows.append, 1, replicas)
            for rank, states, peak in sorted(rows):
                mib = f"{states / MIB:.1f} | {peak / MIB:.0f} | {plan:.0f}"
                print(f"| {optimizer}, {way} | {rank} | {mib} |", flush=True)


def main() -> None:
    """Prints the tables."""
    given = {"tables": "delay,replicas", "replicas": "2"}
    given |= dict(word.split("=") for word in sys.argv[1:])
    if "delay" in given["tables"]:
        delay_table()
    if "replicas" in given["tables"]:
        replicas_table(int(given["replicas"]))


if __name__ == "__main__":
    main()
