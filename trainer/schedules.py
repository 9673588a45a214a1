"""When each stage runs forward (F), backward (B) and update (U), as pure data.

A schedule is made for T updates of p stages and m microbatches a batch. F and B name the version
of the weights that they read, U(t) makes version t + 1, and the delay of batch t on a stage is
*counted* from that list: t − version (`delays`). Executors only execute the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge

from trainer.errors import BadInput

Count = Annotated[int, Ge(1)]
Updates = Annotated[int, Ge(0)] | Annotated[float, Ge(0)]
"""A number of updates, or, if a float, a share of all updates."""


class Op(NamedTuple):
    """One operation of one stage.

    `version` is the version that F and B read, or that U makes. `tied_version` is the one they read
    of weights that another stage holds too (tied embeddings), which share the larger delay.
    """

    kind: Literal["F", "B", "U"]
    batch: int
    microbatch: int
    version: int
    tied_version: int


@dataclass(frozen=True)
class Schedule:
    """Operations of p stages over T batches of m microbatches.

    `lags[s]` is how many versions stage s reads behind the newest while the delay is on, which is
    for batches first_delayed … first_cooldown − 1. `flushes`: a stage starts a batch only when it
    has finished the last one (a bubble a batch). `forwards_first`: all forwards of a batch come
    before its backwards, in place of one in turn.
    """

    num_updates: int
    num_microbatches: int
    lags: tuple[int, ...]
    flushes: bool
    first_delayed: int
    first_cooldown: int
    forwards_first: bool = False

    @property
    def num_stages(self) -> int:
        """p."""
        return len(self.lags)

    @property
    def tied_lag(self) -> int:
        """Of weights held by the first and the last stage: the larger of their lags."""
        return max(self.lags[0], self.lags[-1])

    @property
    def phases(self) -> tuple[int, ...]:
        """Batches at which a phase starts or ends: synchronous, delayed, cooldown."""
        marks = {0, self.first_delayed, self.first_cooldown, self.num_updates}
        return tuple(sorted(marks))

    def _version(self, batch: int, lag: int) -> int:
        if not self.first_delayed <= batch < self.first_cooldown:
            return batch
        return max(self.first_delayed, batch - lag)

    def operations(self, stage: int, first: int, last: int) -> list[Op]:
        """What `stage` does from one drain to the next: batches first … last − 1 of one phase."""
        delayed = self.first_delayed <= first < self.first_cooldown
        whole = [range(first, last)] if delayed and not self.flushes else _singles(first, last)
        order = (step for batches in whole for step in self._order(stage, batches))
        return list(self._with_updates(stage, order, first, last))

    def _order(self, stage: int, batches: range) -> Iterator[tuple[Literal["F", "B"], int]]:
        """One forward, one backward in turn, `ahead` forwards before; flat microbatch index."""
        m = self.num_microbatches
        start, stop = batches.start * m, batches.stop * m
        ahead = m if self.forwards_first else self.num_stages - 1 - stage
        for index in range(start, stop + ahead):
            if index < stop:
                yield "F", index
            if index - ahead >= start:
                yield "B", index - ahead

    def _with_updates(
        self, stage: int, order: Iterable[tuple[Literal["F", "B"], int]], first: int, last: int
    ) -> Iterator[Op]:
        """Puts each U as late as its reader allows.

        That is before the first F that reads its version, or before the batch after it has its
        gradient complete, so that at most one update is pending (what hides the clip's reduction).
        """
        m, made = self.num_microbatches, first
        for kind, index in order:
            batch, microbatch = divmod(index, m)
            version = self._version(batch, self.lags[stage])
            tied_version = self._version(batch, self.tied_lag)
            completes = kind == "B" and microbatch == m - 1
            needed = batch if completes else version
            for update in range(made, needed):
                yield _update(update, m)
            made = max(made, needed)
            yield Op(kind, batch, microbatch, version, tied_version)
        for update in range(made, last):
            yield _update(update, m)


def _update(batch: int, num_microbatches: int) -> Op:
    return Op("U", batch, num_microbatches - 1, batch + 1, batch + 1)


def _singles(first: int, last: int) -> list[range]:
    return [range(batch, batch + 1) for batch in range(first, last)]


def delays(operations: Sequence[Op]) -> list[int]:
    """Counts, for each update in the list, how many updates old its gradient is."""
    read = {op.batch: op.version for op in operations if op.kind == "F"}
    return [op.version - 1 - read[op.batch] for op in operations if op.kind == "U"]


def _phased(
    num_updates: int,
    lags: Sequence[int],
    num_microbatches: int,
    *,
    flushes: bool,
    start: float = 0,
    cooldown: float = 0,
) -> Schedule:
    first_delayed, cooled = (
        share if isinstance(share, int) else round(share * num_updates)
        for share in (start, cooldown)
    )
    if first_delayed + cooled > num_updates:
        raise BadInput(
            "pipeline.synchronous_start + pipeline.synchronous_cooldown",
            first_delayed + cooled,
            f"at most num_updates={num_updates} (an int counts updates, a float is a share)",
        )
    return Schedule(
        num_updates, num_microbatches, tuple(lags), flushes, first_delayed, num_updates - cooled
    )


def sync(num_updates: int, *, num_stages: Count, num_microbatches: Count) -> Schedule:
    """1F1B with a flush a batch (PipeDream-Flush, arXiv 2006.09503): no delay."""
    return _phased(num_updates, [0] * num_stages, num_microbatches, flushes=True)


def gpipe(num_updates: int, *, num_stages: Count, num_microbatches: Count) -> Schedule:
    """All forwards, all backwards, a flush a batch (arXiv 1811.06965): no delay."""
    return replace(
        sync(num_updates, num_stages=num_stages, num_microbatches=num_microbatches),
        forwards_first=True,
    )


def pipedream_2bw(
    num_updates: int,
    *,
    num_stages: Count,
    num_microbatches: Count,
    synchronous_start: Updates,
    synchronous_cooldown: Updates,
) -> Schedule:
    """PipeDream-2BW (arXiv 2006.09503): no flush, every stage reads version t − 1.

    Two versions suffice if and only if m ≥ p − 1: raises BadInput otherwise.
    """
    if num_microbatches < num_stages - 1:
        raise BadInput(
            "pipeline.num_microbatches",
            num_microbatches,
            f"2BW needs at least num_stages - 1 = {num_stages - 1} "
            f"({num_stages} or more recommended)",
        )
    return _phased(
        num_updates,
        [1] * num_stages,
        num_microbatches,
        flushes=False,
        start=synchronous_start,
        cooldown=synchronous_cooldown,
    )


def pipedream(
    num_updates: int,
    *,
    num_stages: Count,
    num_microbatches: Count,
    synchronous_start: Updates,
    synchronous_cooldown: Updates,
) -> Schedule:
    """PipeDream with weight stashing (arXiv 1806.03377): stage s lags ceil((p − 1 − s) / m)."""
    lags = [ceil((num_stages - 1 - stage) / num_microbatches) for stage in range(num_stages)]
    return _phased(
        num_updates,
        lags,
        num_microbatches,
        flushes=False,
        start=synchronous_start,
        cooldown=synchronous_cooldown,
    )


def constant_delay(
    num_updates: int,
    *,
    delay: Annotated[int, Ge(0)],
    num_stages: Count,
    num_microbatches: Count,
    synchronous_start: Updates,
    synchronous_cooldown: Updates,
) -> Schedule:
    """Every stage reads version t − τ: the paper's theory for any constant delay. Emulated only."""
    return _phased(
        num_updates,
        [delay] * num_stages,
        num_microbatches,
        flushes=True,
        start=synchronous_start,
        cooldown=synchronous_cooldown,
    )
