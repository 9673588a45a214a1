"""A true pipeline of two ranks, one core each, against the runtime of AsyncPP.

    git clone https://github.com/PluralisResearch/AsyncPP
    python -O -m bench.async_pp [path=AsyncPP] [microbatches=4] [rounds=5]

Its runtime is PipeDream's: a thread per message, weights that are stashed as dictionaries, and
forwards that are run again before each backward. It gets the stages, data and optimizer of
`bench.pipelining`. AsyncPP clips each stage by its own norm; so do ours here. The runtime is
written for GPUs: what moves tensors there does nothing, and -O leaves out the assertions that
tensors are there.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.ranks import (
    IN_A_ROW,
    LENGTH,
    RANKS,
    ROWS,
    Run,
    Send,
    medians_of_all,
    modules_of,
    on_ranks,
    ours,
    prepare,
)
from bench.timing import options, table
from trainer.ranks.groups import Gang

BY_STAGE = "clip_scope=stage"
ONE_EACH = "AsyncPP, an update per microbatch"


@contextmanager
def on_a_cpu() -> Iterator[None]:
    """AsyncPP's calls for a GPU do nothing; it uses the group that is there, and prints nothing."""
    with (
        patch.object(Tensor, "cuda", lambda tensor, **_: tensor),
        patch.object(nn.Module, "cuda", lambda module: module),
        patch.object(torch.cuda, "set_device", lambda device: None),
        patch.object(dist, "init_process_group", lambda *_, **__: None),
        redirect_stdout(StringIO()),
    ):
        yield


def stage_runtime(rank: int, modules: list[nn.Module], width: int, vocab_size: int) -> Any:
    """AsyncPP's runtime of this rank: one stage each, the loss beside the last one."""
    from runtime.runtime import LANGUAGE_MODELING, StageRuntime

    names = ["input0", *(f"out{stage}" for stage in range(RANKS)), "loss"]
    layers = [*modules, nn.CrossEntropyLoss()]
    model = [(layer, [names[i]], [names[i + 1]]) for i, layer in enumerate(layers)]
    tokens = (ROWS, LENGTH)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(names[1:-2], (*tokens, width))
    shapes |= {"input0": tokens, "target": tokens, names[-2]: (*tokens, vocab_size)}
    of_tokens = {"input0": torch.int64, "target": torch.int64}
    return StageRuntime(
        model=model,
        distributed_backend="gloo",
        fp16=False,
        loss_scale=1.0,
        training_tensor_shapes=shapes,
        eval_tensor_shapes=shapes,
        training_tensor_dtypes={**dict.fromkeys(names, torch.float32), **of_tokens},
        inputs_module_destinations={"input0": 0},
        target_tensor_names={"target"},
        configuration_maps={
            "module_to_stage_map": [*range(RANKS), RANKS - 1],
            "stage_to_rank_map": {stage: [stage] for stage in range(RANKS)},
            "stage_to_depth_map": None,
        },
        master_addr="",
        master_port=0,
        rank=rank,
        local_rank=rank,
        num_ranks_in_server=1,
        verbose_freq=0,
        model_type=LANGUAGE_MODELING,
        enable_recompute=True,
    )


def theirs(rank: int, per_update: int) -> Run:
    """Its runtime and optimizer on this rank's stage, in the loop of its `train`."""
    from optim.optimizer import OptimizerWithWeightStashing

    config, parts = prepare(1, "sync")
    modules = modules_of(config, parts, RANKS, range(RANKS))
    runtime = stage_runtime(rank, modules, parts.model.hidden_size, parts.model.vocab_size)
    chosen = config["optimizer"]
    optimizer = OptimizerWithWeightStashing(
        optim_name="AdamW",
        modules=runtime.modules(),
        master_parameters=runtime.master_parameters,
        model_parameters=None,
        loss_scale=1.0,
        num_versions=runtime.num_warmup_minibatches + 1,
        clip_grad=config["clip_norm"],
        lr=chosen["lr"],
        betas=(chosen["momentum"], chosen["variance_decay"]),
        weight_decay=chosen["weight_decay"],
    )
    optimizer.update_interval = per_update
    numbers = count()

    def sample(**_: Any) -> tuple[Tensor, Tensor]:
        rows = parts.batches[next(numbers)]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    runtime.set_batch_sampler(sample if rank == 0 else None)

    def backward() -> None:
        optimizer.zero_grad()
        optimizer.load_old_params()
        runtime.run_backward()
        optimizer.load_new_params()
        optimizer.step()

    def run() -> None:
        runtime.train(IN_A_ROW)
        optimizer.initialize_queue()
        for _ in range(runtime.num_warmup_minibatches):
            runtime.run_forward()
        for _ in range(IN_A_ROW - runtime.num_warmup_minibatches):
            runtime.run_forward()
            backward()
        for _ in range(runtime.num_warmup_minibatches):
            backward()
        runtime.wait()

    return run


def contenders(gang: Gang, m: int) -> Mapping[str, Run]:
    """An update per microbatch, and one per batch of m."""
    return {
        ONE_EACH: theirs(gang.place, 1),
        "pipegap, pipedream, an update per microbatch": ours(gang, 1, "pipedream", BY_STAGE),
        f"AsyncPP, an update per {m}": theirs(gang.place, m),
        f"pipegap, pipedream_2bw, an update per {m}": ours(gang, m, "pipedream_2bw", BY_STAGE),
    }


def compare(gang: Gang, send: Send, path: str, num_microbatches: int, rounds: int) -> None:
    """Times all contenders; the recording rank sends their medians."""
    sys.path.insert(0, path)
    with on_a_cpu():
        seconds = medians_of_all(gang, contenders(gang, num_microbatches), rounds)
    if gang.records:
        send(seconds)


def main() -> None:
    """Prints the table."""
    given = options(path="AsyncPP", microbatches=4, rounds=5)

    def show(seconds: dict[str, float]) -> None:
        print(f"p = {RANKS}, {IN_A_ROW} microbatches in a row\n")
        print(table(seconds, ONE_EACH, IN_A_ROW * 1e-3, "ms per microbatch"))

    on_ranks(compare, (given.path, given.microbatches, given.rounds), show)


if __name__ == "__main__":
    main()
