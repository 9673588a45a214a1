"""Trains a rank's stage with torch's own pipeline runtime: another program, the same semantics.

Of ours it takes the model, the batches and, for a delay, the list of operations. Versions are kept
as naively as can be: all of them, and for each batch a copy of the one that it reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, schedules
from torch.distributed.pipelining.schedules import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    RESHARD,
    _Action,
    _add_send_recv,
    _PipelineScheduleRuntime,
)

from pipegap.trainer.models.layers import cross_entropy
from pipegap.trainer.parts import Parts
from pipegap.trainer.schedules.operations import Op

CPU = torch.device("cpu")
Config = dict[str, Any]
Weights = dict[str, nn.Parameter]
UPDATE = RESHARD
"""An operation that torch lets its users define; from 2.15 on REDUCE_GRAD must have its wait."""
WITH_WAITS = getattr(schedules, "_add_wait_send", lambda actions: actions)
"""From 2.15 on the list has the waits for what was sent; before, torch waits at a step's end."""
COMPUTATION = {"F": FORWARD, "B": FULL_BACKWARD, "I": BACKWARD_INPUT, "W": BACKWARD_WEIGHT}
Trained = tuple[list[float], Mapping[str, Tensor]]
"""Loss of every batch, on the last rank; the weights of this rank in the end."""


def one_forward_one_backward(config: Config, parts: Parts, rank: int) -> Trained:
    """Schedule1F1B, as its users call it: one step and one update per batch."""
    module = _module(config, parts, rank)
    stage = PipelineStage(module, rank, parts.schedule.num_ranks, CPU)
    schedule = Schedule1F1B(stage, parts.schedule.num_microbatches, loss_fn=cross_entropy)
    weights = dict(module.named_parameters())
    optimizer = _adamw(config, weights)
    losses: list[Tensor] = []
    for t in range(parts.schedule.num_updates):
        losses.extend(_step(schedule, stage, parts.batches[t]))
        _update(optimizer, config["optimizer"]["lr"] * parts.lr_factor(t))
    return _means(losses, parts.schedule.num_microbatches), weights


def operations(config: Config, parts: Parts, rank: int) -> Trained:
    """The schedule's own list, all batches in one step: torch puts the messages between them."""
    schedule = parts.schedule
    m, p, last = schedule.num_microbatches, schedule.num_ranks, schedule.num_updates
    lists = schedule.operations(0, last)
    stage = VersionedStage(config, parts, rank, lists[rank])
    runtime = _PipelineScheduleRuntime([stage], m * last, cross_entropy, scale_grads=False)
    actions = {place: [_action(op, m) for op in ops] for place, ops in enumerate(lists)}
    with_messages = WITH_WAITS(_add_send_recv(actions, lambda stage: stage, p))
    runtime._prepare_schedule_with_comms(with_messages, format="compute_comms")
    runtime.register_custom_function(UPDATE, stage.update)
    losses = _step(runtime, stage, torch.cat([parts.batches[t] for t in range(last)]))
    return _means(losses, m), stage.newest


class VersionedStage(PipelineStage):
    """Reads, for every forward and backward, the version that its operation names."""

    def __init__(self, config: Config, parts: Parts, rank: int, ops: Sequence[Op]) -> None:
        super().__init__(_module(config, parts, rank), rank, parts.schedule.num_ranks, CPU)
        m = parts.schedule.num_microbatches
        self._op = {(op.kind, op.batch * m + op.microbatch): op for op in ops}
        self._num_microbatches, self._lr_factor = m, parts.lr_factor
        self._peak_lr = config["optimizer"]["lr"]
        self.newest = _copy(dict(self.submod.named_parameters()))
        self._versions = {0: _copy(self.newest)}
        self._read: dict[tuple[int, int], Weights] = {}
        self._optimizer = _adamw(config, self.newest)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._bind(self._op["F", fwd_chunk_id])
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        kind = "B" if kwargs["full_backward"] else "I"
        self._bind(self._op[kind, bwd_chunk_id])  # layers that are recomputed read it again
        return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def _bind(self, op: Op) -> None:
        """Two batches may read one version: each has its copy, and so a gradient of its own."""
        if (op.batch, op.version) not in self._read:
            self._read[op.batch, op.version] = _copy(self._versions[op.version])
        for name, weight in self._read[op.batch, op.version].items():
            path, _, leaf = name.rpartition(".")
            setattr(self.submod.get_submodule(path), leaf, weight)

    def update(self, action: _Action, _: object) -> None:
        """W(t + 1) = W(t) − u_t, of the mean gradient of batch t."""
        t = action.microbatch_index
        [read] = [self._read.pop(key) for key in list(self._read) if key[0] == t]
        for name, weight in self.newest.items():
            weight.grad = read[name].grad / self._num_microbatches
        _update(self._optimizer, self._peak_lr * self._lr_factor(t))
        self._versions[t + 1] = _copy(self.newest)


def _action(op: Op, num_microbatches: int) -> _Action:
    """Torch counts microbatches from the first to the last of a step; an update has its batch."""
    if op.kind == "U":
        return _Action(op.stage, UPDATE, op.batch)
    microbatch = op.batch * num_microbatches + op.microbatch
    return _Action(op.stage, COMPUTATION[op.kind], microbatch)


def _module(config: Config, parts: Parts, rank: int) -> nn.Module:
    split = parts.model.split(parts.schedule.num_stages, config["seq_len"])
    module: nn.Module = parts.model.stage(rank, split)
    parts.model.initialise(module, config["seed"])
    return module


def _copy(weights: Mapping[str, Tensor]) -> Weights:
    return {name: nn.Parameter(weight.detach().clone()) for name, weight in weights.items()}


def _adamw(config: Config, weights: Weights) -> torch.optim.AdamW:
    given = config["optimizer"]
    matrices = [weight for weight in weights.values() if weight.ndim == 2]
    norms = [weight for weight in weights.values() if weight.ndim == 1]
    return torch.optim.AdamW(
        [{"params": matrices}, {"params": norms, "weight_decay": 0.0}],
        betas=(given["momentum"], given["variance_decay"]),
        eps=given["eps"],
        weight_decay=given["weight_decay"],
    )


def _update(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad()


def _means(losses: Sequence[Tensor], num_microbatches: int) -> list[float]:
    batches = range(0, len(losses), num_microbatches)
    return [float(torch.stack(losses[i : i + num_microbatches]).mean()) for i in batches]


def _step(
    schedule: Schedule1F1B | _PipelineScheduleRuntime, stage: PipelineStage, batch: Tensor
) -> list[Tensor]:
    """Runs all microbatches; the last rank gets their losses."""
    losses: list[Tensor] = []
    inputs = (batch[:, :-1].contiguous(),) if stage.is_first else ()
    targets = {"target": batch[:, 1:], "losses": losses} if stage.is_last else {}
    schedule.step(*inputs, **targets, return_outputs=False)
    return [loss.detach() for loss in losses]
