"""When each stage runs forward (F), backward (B) and update (U), as pure data.

A schedule is made for T updates of p ranks and m microbatches per batch. F and B name the version
of the weights that they read, U(t) makes version t + 1, and the delay of batch t on a stage is
*counted* from that list: t − version (`delays`). Executors only execute the list.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import ceil
from typing import NamedTuple

from pipegap.trainer.schedules.orders import (
    Kind,
    Order,
    OrderStep,
    PipelineRank,
    Placement,
    in_turns,
)


class Op(NamedTuple):
    """One operation of one stage.

    F is a forward, B a backward. I and W are the two halves of a backward: the gradient of the
    input, and the gradients of the weights. U is an update. `version` is the version that F, B,
    I and W read, or that U makes. `tied_version` is the version that they read of weights that
    another stage holds too (tied embeddings): the copies share the larger delay.

    It prints as stage, kind, batch, microbatch and version: 1F0.3@v7 is stage 1's forward of
    batch 0, microbatch 3, at version 7. An update is of a whole batch: 1U0@v1 makes version 1.
    """

    kind: Kind
    stage: int
    batch: int
    microbatch: int
    version: int
    tied_version: int

    def __str__(self) -> str:
        part = "" if self.kind == "U" else f".{self.microbatch}"
        return f"{self.stage}{self.kind}{self.batch}{part}@v{self.version}"


@dataclass(frozen=True)
class Schedule:
    """Operations of p ranks over T batches of m microbatches, each in the rank's `order`.

    The model has p · num_chunks stages, which `placement` gives to the ranks. Stage s reads
    `lags[s]` versions behind the newest while the delay is on, which is for batches first_delayed …
    first_cooldown − 1. If the schedule `flushes`, a rank starts a batch only when it has finished
    the one before (one bubble per batch). If it is `in_place`, a stage holds a single version of
    its weights, and updates change it while microbatches are in flight: a forward reads the version
    that is newest at that moment, up to `lags[s]` versions behind that of its batch, and the
    backward of the same microbatch reads the newest version at its own moment. If it `recomputes`,
    a backward first runs the forward of its microbatch again, at the version that the backward
    reads.
    """

    num_updates: int
    num_microbatches: int
    lags: tuple[int, ...]
    order: Order
    flushes: bool
    first_delayed: int
    first_cooldown: int
    num_chunks: int = 1
    placement: Placement = in_turns
    in_place: bool = False
    recomputes: bool = False

    @property
    def num_stages(self) -> int:
        """Parts of the model."""
        return len(self.lags)

    @property
    def num_ranks(self) -> int:
        """p: processes of a true pipeline."""
        return len(self.lags) // self.num_chunks

    @property
    def tied_lag(self) -> int:
        """The lag of weights that the first and the last stage share: the larger of the two."""
        return max(self.lags[0], self.lags[-1])

    @property
    def is_delayed(self) -> bool:
        """Whether the lags and the phases make any gradient late."""
        return any(self.lags) and self.first_cooldown - self.first_delayed > 1

    @property
    def splits_backward(self) -> bool:
        """Whether backwards come in halves, I and W."""
        return any(step.kind == "W" for step in self.order(PipelineRank(0, 1, 1), 1))

    @property
    def phases(self) -> tuple[int, ...]:
        """Batches at which a phase starts or ends: synchronous, delayed, cooldown."""
        marks = {0, self.first_delayed, self.first_cooldown, self.num_updates}
        return tuple(sorted(marks))

    def stages(self, rank: int) -> tuple[int, ...]:
        """The stages that `rank` holds, by chunk."""
        return self.placement(self._place(rank))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank that holds each stage."""
        holder = {stage: rank for rank in range(self.num_ranks) for stage in self.stages(rank)}
        return tuple(holder[stage] for stage in range(self.num_stages))

    def _place(self, rank: int) -> PipelineRank:
        return PipelineRank(rank, self.num_ranks, self.num_chunks)

    def operations(self, first: int, last: int) -> list[list[Op]]:
        """Every rank's operations from drain to drain: batches first … last − 1 of one phase."""
        return [self._operations(rank, first, last) for rank in range(self.num_ranks)]

    def undelayed(self, batch: int) -> list[list[Op]]:
        """Every rank's operations for `batch` alone between two drains, as without a delay."""
        fresh = replace(self, lags=(0,) * len(self.lags), flushes=True)
        return fresh.operations(batch, batch + 1)

    def _operations(self, rank: int, first: int, last: int) -> list[Op]:
        delayed = self.first_delayed <= first < self.first_cooldown
        runs = [range(batch, batch + 1) for batch in range(first, last)]
        if delayed and not self.flushes:
            runs = [range(first, last)]
        # Without drains between the batches of a run.
        stages, at, m = self.stages(rank), self._place(rank), self.num_microbatches
        steps = ((step, run) for run in runs for step in self.order(at, len(run) * m))
        ops = (self._pass(step, stages[step.chunk], run.start) for step, run in steps)
        return list(self._with_updates(rank, ops, first, last))

    def _pass(self, step: OrderStep, stage: int, first: int) -> Op:
        batch, microbatch = divmod(step.flat, self.num_microbatches)
        batch += first
        if self.in_place:
            version = self.version(batch, self._lag_in_place(step.kind, stage, microbatch))
            return Op(step.kind, stage, batch, microbatch, version, version)
        version = self.version(batch, self.lags[stage])
        return Op(step.kind, stage, batch, microbatch, version, self.version(batch, self.tied_lag))

    def _lag_in_place(self, kind: Kind, stage: int, microbatch: int) -> int:
        """0 for a backward. Before a forward of 1F1B, p − 1 − s microbatches are on their way whose
        backwards come later: the updates that wait for these are not there yet."""
        if kind != "F":
            return 0
        unseen = self.num_stages - 1 - stage - microbatch
        return min(self.lags[stage], max(0, ceil(unseen / self.num_microbatches)))

    def version(self, batch: int, lag: int) -> int:
        """The version that `batch` reads of a weight with this lag."""
        if not self.first_delayed <= batch < self.first_cooldown:
            return batch
        return max(self.first_delayed, batch - lag)

    def _with_updates(self, rank: int, ops: Iterable[Op], first: int, last: int) -> Iterator[Op]:
        """Inserts each U as late as possible, which hides the clip's reduction.

        That is before the first pass that reads its version, or when the gradient of the next batch
        is complete: at most one update is pending.
        """
        version = first
        for op in ops:
            yield from self._updates(rank, version, op.version)
            version = max(version, op.version)
            yield op
            if completes(op, self.num_microbatches):
                yield from self._updates(rank, version, op.batch)
                version = max(version, op.batch)
        yield from self._updates(rank, version, last)

    def _updates(self, rank: int, version: int, needed: int) -> Iterator[Op]:
        """The U of every stage of the rank that make versions `version` + 1 … `needed`."""
        for batch in range(version, needed):
            for stage in self.stages(rank):
                yield Op("U", stage, batch, self.num_microbatches - 1, batch + 1, batch + 1)


def completes(op: Op, num_microbatches: int) -> bool:
    """Whether the gradient of the op's batch is complete, on its stage, after `op`."""
    return op.kind in ("B", "W") and op.microbatch == num_microbatches - 1


def delays(operations: Iterable[Op]) -> dict[int, list[int]]:
    """Counts, for each stage and update in the list, how many updates old its gradient is: as
    old as its oldest microbatch, by the forwards."""
    oldest_versions: dict[tuple[int, int], int] = {}
    delays_of_stages: dict[int, list[int]] = {}
    for op in operations:
        if op.kind == "F":
            at = op.stage, op.batch
            oldest_versions[at] = min(oldest_versions.get(at, op.version), op.version)
        elif op.kind == "U":
            late = op.version - 1 - oldest_versions[op.stage, op.batch]
            delays_of_stages.setdefault(op.stage, []).append(late)
    return delays_of_stages


def horizon(operations: Sequence[Sequence[Op]], batch: int) -> int:
    """The last batch that any rank works on before it applies the update of `batch`."""
    ops_before = (
        takewhile(lambda op: (op.kind, op.batch) != ("U", batch), ops) for ops in operations
    )
    return max(op.batch for ops in ops_before for op in ops)
