"""Operation lists of all stages in one order; the proof that a schedule can run. Pure data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainer.schedules import Op


def interleave(operations: Sequence[Sequence[Op]]) -> Iterator[tuple[int, Op]]:
    """Yields (stage, operation) in an order in which one process can do what p processes would.

    F waits for the stage before, B for the stage after, U(t) for the last B of batch t on every
    stage (the global norm). Raises ValueError if the lists deadlock.
    """
    done: set[tuple[str, int, int, int]] = set()
    position = [0] * len(operations)
    while any(at < len(ops) for at, ops in zip(position, operations, strict=True)):
        advanced = False
        for stage, ops in enumerate(operations):
            while position[stage] < len(ops) and done.issuperset(
                awaited(stage, ops[position[stage]], len(operations))
            ):
                op = ops[position[stage]]
                position[stage] += 1
                advanced = True
                yield stage, op
                done.add((op.kind, stage, op.batch, op.microbatch))
        if not advanced:
            stuck = [ops[at] for at, ops in zip(position, operations, strict=True) if at < len(ops)]
            raise ValueError(f"the schedule deadlocks: every stage waits, at {stuck}")


def awaited(stage: int, op: Op, num_stages: int) -> set[tuple[str, int, int, int]]:
    """What must be done, on other stages, before `op` can run."""
    if op.kind == "U":
        return {("B", other, op.batch, op.microbatch) for other in range(num_stages)}
    neighbour = stage - 1 if op.kind == "F" else stage + 1
    if not 0 <= neighbour < num_stages:
        return set()
    return {(op.kind, neighbour, op.batch, op.microbatch)}


def check(operations: Sequence[Sequence[Op]], lags: Sequence[int], first: int) -> None:
    """Proves that every version exists when it is read and is not yet overwritten.

    Stage s holds its last `lags[s]` + 1 versions; `first` is the newest one at the start.
    Raises ValueError naming the stage and the operation, or on a deadlock.
    """
    newest = [first] * len(operations)
    for stage, op in interleave(operations):
        if op.kind == "U":
            if op.version != newest[stage] + 1:
                raise ValueError(f"stage {stage}: {op} does not follow version {newest[stage]}")
            newest[stage] = op.version
        elif not newest[stage] - lags[stage] <= op.version <= newest[stage]:
            raise ValueError(f"stage {stage}: {op} reads a version that is not there")
