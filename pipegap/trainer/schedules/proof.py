"""Operation lists of all ranks in one order: the proof that a schedule can run, and its simulation.

Pure data, no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipegap.trainer.schedules.operations import Op, Schedule

Key = tuple[str, int, int, int]
SHOWN = 4
"""Number of operations of each rank that the message of a deadlock shows."""


def key(op: Op) -> Key:
    """The name of the result of `op`.

    B and I have the same, because the input half of a backward sends what the whole one sends.
    """
    return "B" if op.kind == "I" else op.kind, op.stage, op.batch, op.microbatch


def interleave(operations: Sequence[Sequence[Op]]) -> Iterator[tuple[int, Op]]:
    """Yields (rank, operation) in an order in which one process can execute the lists of p ranks.

    Raises ValueError if the lists deadlock; its message says what each rank did last and awaits.
    """
    awaits = Awaits(operations)
    done: set[Key] = set()
    position = [0] * len(operations)
    while any(at < len(ops) for at, ops in zip(position, operations, strict=True)):
        advanced = False
        for rank, ops in enumerate(operations):
            # A rank runs as far as it can: any order that respects `awaits` has the same results.
            while position[rank] < len(ops) and done.issuperset(awaits(ops[position[rank]])):
                op = ops[position[rank]]
                position[rank] += 1
                advanced = True
                yield rank, op
                done.add(key(op))
        if not advanced:
            raise ValueError(f"the schedule deadlocks: {_stuck(operations, position, done)}")


def _stuck(operations: Sequence[Sequence[Op]], position: Sequence[int], done: set[Key]) -> str:
    """The message of a deadlock: what each rank did last, and what its next operation awaits."""
    awaits, ops_by_key = Awaits(operations), {key(op): op for ops in operations for op in ops}
    ranks = []
    for rank, (at, ops) in enumerate(zip(position, operations, strict=True)):
        last = " ".join(map(str, ops[max(0, at - SHOWN) : at])) or "nothing"
        if at == len(ops):
            ranks.append(f"rank {rank} did {last} and is done")
            continue
        missing = " ".join(
            _name(ops_by_key, key_awaited) for key_awaited in sorted(awaits(ops[at]) - done)
        )
        ranks.append(f"rank {rank} did {last}; {ops[at]} waits for {missing}")
    return " | ".join(ranks)


def _name(ops_by_key: Mapping[Key, Op], missing: Key) -> str:
    """The missing operation as text; without a version if no rank has it in its list."""
    kind, stage, batch, microbatch = missing
    return str(ops_by_key.get(missing, f"{stage}{kind}{batch}.{microbatch}, which is in no list"))


class Awaits:
    """What an operation needs, beside the operations before it in the list of its own rank.

    F needs the F of the stage before, B the B of the stage after. U(t) needs the gradient of batch
    t to be complete on all stages (for the global norm), and U(t − 1) to be applied on all stages,
    because a stage reduces one gradient at a time.
    """

    def __init__(self, operations: Sequence[Sequence[Op]]) -> None:
        everything = [op for ops in operations for op in ops]
        self._stages = sorted({op.stage for op in everything})
        self._halves = any(op.kind == "W" for op in everything)
        self._first = min((op.batch for op in everything), default=0)

    def __call__(self, op: Op) -> set[Key]:
        """Keys of the operations that must be done before `op` can run."""
        if op.kind == "W":
            return set()
        if op.kind == "U":
            return self._of_update(op)
        # Activations come from the stage before, gradients from the stage after.
        neighbour = op.stage - 1 if op.kind == "F" else op.stage + 1
        if neighbour not in self._stages:
            return set()
        return {(key(op)[0], neighbour, op.batch, op.microbatch)}

    def _of_update(self, op: Op) -> set[Key]:
        last = "W" if self._halves else "B"
        complete = {(last, stage, op.batch, op.microbatch) for stage in self._stages}
        if op.batch == self._first:  # the lists begin after a drain
            return complete
        return complete | {("U", stage, op.batch - 1, op.microbatch) for stage in self._stages}


def check(operations: Sequence[Sequence[Op]], lags: Sequence[int], first: int) -> None:
    """Proves that every version exists when it is read and is not yet overwritten.

    Stage s holds its last `lags[s]` + 1 versions. Of tied weights the first and the last stage both
    hold as many as the larger of their lags needs. `first` is the newest version at the start.
    Raises ValueError, which names the stage and the operation, and ValueError on a deadlock.
    """
    newest = dict.fromkeys(range(len(lags)), first)
    ends, tied_lag = {0, len(lags) - 1}, max(lags[0], lags[-1])
    for _, op in interleave(operations):
        if op.kind == "U":
            if op.version != newest[op.stage] + 1:
                raise ValueError(f"{op} does not follow version {newest[op.stage]}")
            newest[op.stage] = op.version
            continue
        reads = [(op.version, lags[op.stage])]
        # Tied weights (embedding and head) lie on the first and the last stage alone.
        reads += [(op.tied_version, tied_lag)] if op.stage in ends else []
        if not all(0 <= newest[op.stage] - version <= lag for version, lag in reads):
            raise ValueError(f"{op} reads a version that is not there")


Costs = Mapping[str, float]
"""Time of an operation of each kind."""
SETTLED = 2
"""Batches until a pipeline is in its steady state; its time is measured over as many more."""


@dataclass(frozen=True)
class Timeline:
    """`spans[r]` are (operation, start, end) of rank r, in the unit of the costs."""

    spans: list[list[tuple[Op, float, float]]]

    @property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return max(end for spans in self.spans for _, _, end in spans)

    def peak_activations(self, rank: int) -> int:
        """The largest number of microbatches that are between forward and backward on `rank`.

        Each counts once per chunk. A backward in halves ends with the half for the weights.
        """
        alive = peak = 0
        for op, _, _ in self.spans[rank]:
            alive += {"F": 1, "B": -1, "I": 0, "W": -1, "U": 0}[op.kind]
            peak = max(peak, alive)
        return peak


def simulate(
    operations: Sequence[Sequence[Op]], costs: Sequence[Costs], communication: float = 0.0
) -> Timeline:
    """Runs the ranks' lists with the `costs` of each rank's operations.

    A result reaches another rank `communication` units later. Raises ValueError on a deadlock.
    """
    awaits = Awaits(operations)
    ends: dict[Key, tuple[int, float]] = {}
    free = [0.0] * len(operations)
    spans: list[list[tuple[Op, float, float]]] = [[] for _ in operations]
    for rank, op in interleave(operations):
        needed = (ends[predecessor] for predecessor in awaits(op))
        arrivals = (end + (communication if by != rank else 0.0) for by, end in needed)
        start = max([free[rank], *arrivals])  # the rank is free, and all inputs have arrived
        free[rank] = start + costs[rank][op.kind]
        spans[rank].append((op, start, free[rank]))
        ends[key(op)] = rank, free[rank]
    return Timeline(spans)


def steady(
    schedule: Schedule, costs: Sequence[Costs], communication: float = 0.0
) -> tuple[float, Timeline]:
    """The time that one more batch adds to a long run without phases, and the timeline of the
    first batches of that run.

    The arguments are as in `simulate`, with the schedule in place of its operations.
    """
    end = 2 * SETTLED
    phaseless = replace(schedule, num_updates=end, first_delayed=0, first_cooldown=end)
    # The fill and the drain of the pipeline are in both runs: the difference has neither.
    start, longer = (
        simulate(phaseless.operations(0, last), costs, communication) for last in (SETTLED, end)
    )
    return (longer.makespan - start.makespan) / SETTLED, start
