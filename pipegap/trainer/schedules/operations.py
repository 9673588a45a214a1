"""When each stage runs forward (F), backward (B) and update (U), and the order within a rank, as
pure data.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from math import ceil
from typing import Literal, NamedTuple

# The order in which a rank runs the forwards and backwards of consecutive batches. A schedule that
# flushes asks for the order of one batch at a time.

Kind = Literal["F", "B", "I", "W", "U"]
"""Forward; backward, whole or its input and weight halves; update."""


class OrderStep(NamedTuple):
    """One forward or backward; `flat` numbers the microbatches of all batches consecutively."""

    kind: Kind
    chunk: int
    flat: int


class PipelineRank(NamedTuple):
    """The rank, the number of ranks, and the number of chunks of the model that each rank holds."""

    rank: int
    num_ranks: int
    num_chunks: int


Order = Callable[[PipelineRank, int], Iterator[OrderStep]]
"""(rank, number of microbatches) → the rank's steps."""
Placement = Callable[[PipelineRank], tuple[int, ...]]
"""rank → the stages that it holds, by chunk."""


def in_turns(at: PipelineRank) -> tuple[int, ...]:
    """Rank r of p holds stages r, r + p, r + 2p, …"""
    return tuple(range(at.rank, at.num_ranks * at.num_chunks, at.num_ranks))


def in_a_v(at: PipelineRank) -> tuple[int, ...]:
    """Rank r of p holds stages r and 2p − 1 − r: they go down the ranks and up again."""
    return at.rank, 2 * at.num_ranks - 1 - at.rank


def one_forward_one_backward(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """1F1B (arXiv 2006.09503): one forward for each later rank, then one forward, one backward."""
    return by_turns(at.num_ranks - 1 - at.rank, num_microbatches)


def with_slack(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """1F1B with two forwards for each later rank: no rank waits for a message that takes at most
    half as long as a forward and a backward.

    In 1F1B a gradient arrives no earlier than the rank needs it, so the rank idles as long as the
    messages to the next rank and back take.
    """
    return by_turns(2 * (at.num_ranks - 1 - at.rank), num_microbatches)


def by_turns(
    num_ahead: int, num_microbatches: int, steps: range | None = None
) -> Iterator[OrderStep]:
    """`num_ahead` forwards, then one forward and one backward by turns, then the last backwards.

    Step n is forward n and backward n − `num_ahead`, as far as they exist. `steps` selects some of
    the steps; by default the order has all.
    """
    # After each step at most num_ahead + 1 microbatches are in flight, counting the one just run.
    for step in range(num_microbatches + num_ahead) if steps is None else steps:
        if step < num_microbatches:
            yield OrderStep("F", 0, step)
        if step >= num_ahead:
            yield OrderStep("B", 0, step - num_ahead)


def forwards_first(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """GPipe (arXiv 1811.06965): all forwards, then all backwards."""
    for kind in ("F", "B"):
        for flat in range(num_microbatches):
            yield OrderStep(kind, 0, flat)


def interleaved(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """Interleaved 1F1B (arXiv 2104.04473): groups of p microbatches go through one chunk at a time.

    The number of microbatches must be divisible by p.
    """
    p, v = at.num_ranks, at.num_chunks
    total = num_microbatches * v
    # As in Megatron-LM: two forwards for each later rank, and a group through all chunks but one.
    num_ahead = min(2 * (p - 1 - at.rank) + (v - 1) * p, total)

    def nth(k: int) -> tuple[int, int]:
        """Chunk and microbatch of the rank's k-th forward."""
        group, within = divmod(k, p * v)
        return within // p, group * p + within % p

    for step in range(total + num_ahead):
        if step < total:
            chunk, flat = nth(step)
            yield OrderStep("F", chunk, flat)
        if step >= num_ahead:
            chunk, flat = nth(step - num_ahead)
            yield OrderStep("B", v - 1 - chunk, flat)  # backwards visit the chunks in reverse


def two_groups(at: PipelineRank, num_microbatches: int, *, per_batch: int) -> Iterator[OrderStep]:
    """WPipe (Yang et al., ICLR 2022): chunk 0 is of the first group, chunk 1 of the second.

    In the first group the forwards of batch t + 1 come before the backwards of batch t. In the
    second group all passes of batch t come before the first of batch t + 1.
    """
    # The forwards of the first batch; those of each later one come with the backwards before it.
    yield from (OrderStep("F", 0, flat) for flat in range(min(per_batch, num_microbatches)))
    for first in range(0, num_microbatches, per_batch):
        for step in one_forward_one_backward(at, per_batch):
            yield OrderStep(step.kind, 1, first + step.flat)
        for flat in range(first, first + per_batch):
            if flat + per_batch < num_microbatches:
                yield OrderStep("F", 0, flat + per_batch)
            yield OrderStep("B", 0, flat)


def zero_bubble_h1(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """ZB-H1 (arXiv 2401.10241): rank r delays each weight half by r microbatches.

    So the weight halves fill what 1F1B leaves idle, while no rank keeps more than p microbatches.
    """
    put_off: list[int] = []
    for step in one_forward_one_backward(at, num_microbatches):
        if step.kind == "F":
            yield step
            continue
        yield step._replace(kind="I")
        put_off.append(step.flat)
        # 1F1B keeps p − r microbatches on rank r; with r put off it keeps p, as on rank 0.
        if len(put_off) > at.rank:
            yield OrderStep("W", 0, put_off.pop(0))  # the oldest
    yield from (OrderStep("W", 0, flat) for flat in put_off)


def zero_bubble_v(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """ZB-V (arXiv 2401.10241, section 6), for two chunks per rank that are placed `in_a_v`.

    While the first microbatch goes from rank r down to the last rank and back, rank r has time for
    2 (p − r) − 1 forwards of its chunk 0. While that microbatch goes on up to rank 0 and comes back
    as a backward, rank r has time for forwards of both chunks by turns. From then on it runs a
    backward before each further forward, so that it keeps the activations of 2p forwards at most.
    After the last forward, r weight halves of each chunk are put off, to fill the waits for the
    last backwards. With 2p − 1 microbatches or more, and forwards and halves that take equally
    long, no rank is idle between its first and its last step. With fewer microbatches the order is
    that of 2p − 1, without the steps of the missing microbatches.
    """
    p, r = at.num_ranks, at.rank
    num = max(num_microbatches, 2 * p - 1)
    parts = (
        ("F0", 2 * (p - r) - 1),  # the first microbatch is on its way down the ranks and back
        ("F1 F0", r),  # it goes up to rank 0 and comes back as a backward
        ("F1 I1 W1", p - r),
        ("F0 I0 W0 F1 I1 W1", num - (2 * p - 1 - r)),  # the steady state
        ("I0 W0 F1 I1 W1", p - r - 1),  # chunk 0 has had all its forwards
        ("I0 I1", r),  # the weight halves of these are the last two parts
        ("I0 W0", p - r),
        ("W1", r),
        ("W0", r),
    )
    names = chain.from_iterable(words.split() * times for words, times in parts)
    yield from _numbered(names, num_microbatches)


def dualpipe_v(at: PipelineRank, num_microbatches: int) -> Iterator[OrderStep]:
    """DualPipeV (DeepSeek's DualPipe, arXiv 2412.19437, cut in half), for two chunks per rank that
    are placed `in_a_v`; the number of microbatches must be 2p or more.

    In the steady state a forward of one chunk and a backward of the other make a pair, which
    DeepSeek computes at the same time, so that each hides the messages of the other. Here a rank
    runs the forward, then the backward. A whole backward is its two halves in a row: the gradient
    of the input leaves after the first. The last 2 (r + 1) backwards of rank r alternate between
    the chunks. The later r + 1 of them put their weight halves off, to fill the waits for the
    backwards of chunk 0 that follow.
    """
    p, r = at.num_ranks, at.rank
    turns = ["1", "0"] * (r + 1)
    whole, halves = turns[: r + 1], turns[r + 1 :]
    put_off = [*(f"W{chunk}" for chunk in halves), *["W0"] * (p - r - 1)]
    names = (
        ["F0"] * (2 * (p - r - 1)),
        ["F0", "F1"] * (r + 1),
        ["I1", "W1", "F1"] * (p - r - 1),
        ["F0", "I1", "W1", "F1", "I0", "W0"] * (num_microbatches - 2 * p + r + 1),
        ["I1", "W1", "F1", "I0", "W0"] * (p - r - 1),
        *([f"I{chunk}", f"W{chunk}"] for chunk in whole),
        [f"I{chunk}" for chunk in halves],
        *([weights, "I0"] for weights in put_off[: p - r - 1]),
        put_off[p - r - 1 :],
    )
    yield from _numbered(chain.from_iterable(names), num_microbatches)


def _numbered(names: Iterable[str], num_microbatches: int) -> Iterator[OrderStep]:
    """The steps of these names, such as F0. The n-th step of a name is of microbatch n; a step
    whose microbatch does not exist is left out."""
    num_steps: Counter[str] = Counter()
    for name in names:
        kind, chunk = TWO_CHUNKS[name]
        if num_steps[name] < num_microbatches:
            yield OrderStep(kind, chunk, num_steps[name])
        num_steps[name] += 1


SPLIT: tuple[Kind, ...] = ("F", "I", "W")
TWO_CHUNKS = {f"{kind}{chunk}": (kind, chunk) for kind in SPLIT for chunk in (0, 1)}
"""Name of a step of a rank with two chunks → its kind and chunk."""


# A schedule is made for T updates of p ranks and m microbatches per batch. F and B name the
# version of the weights that they read, U(t) makes version t + 1, and the delay of batch t on a
# stage is *counted* from that list: t − version (`delays`). Executors only execute the list.


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
        # The first batch of the phase comes right after a drain, and is not late.
        return any(self.lags) and self.first_cooldown - self.first_delayed > 1

    @property
    def splits_backward(self) -> bool:
        """Whether backwards come in halves, I and W."""
        # The smallest case shows it: every order runs on one rank with one microbatch.
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
        fresh = replace(self, lags=(0,) * len(self.lags), flushes=True)  # so that it drains
        return fresh.operations(batch, batch + 1)

    def _operations(self, rank: int, first: int, last: int) -> list[Op]:
        is_delayed = self.first_delayed <= first < self.first_cooldown
        # The pipeline drains between two runs, and not between the batches of a run.
        runs = [range(batch, batch + 1) for batch in range(first, last)]
        if is_delayed and not self.flushes:
            runs = [range(first, last)]
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
        """How many versions behind that of its batch a pass reads. A backward reads the newest
        version: 0."""
        if kind != "F":
            return 0
        # In 1F1B the backwards of the p − 1 − s microbatches before this one are still to come.
        # `num_pending` of those belong to earlier batches, whose updates wait for them.
        num_pending = self.num_stages - 1 - stage - microbatch
        return min(self.lags[stage], max(0, ceil(num_pending / self.num_microbatches)))

    def version(self, batch: int, lag: int) -> int:
        """The version that `batch` reads of a weight with this lag."""
        if not self.first_delayed <= batch < self.first_cooldown:
            return batch
        # The phase starts at a drain: its first batches lag by less than `lag`.
        return max(self.first_delayed, batch - lag)

    def _with_updates(self, rank: int, ops: Iterable[Op], first: int, last: int) -> Iterator[Op]:
        """Inserts each U as late as possible, so that the reduction of the clip's norm runs beside
        other passes.

        That is before the first pass that reads its version, or when the gradient of the next batch
        is complete: at most one update is pending.
        """
        version = first
        for op in ops:
            yield from self._updates(rank, version, op.version)
            version = max(version, op.version)  # the newest that the rank has made
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
    """Counts, for each stage and update in the list, how many updates old its gradient is.

    The gradient of a batch is as old as the oldest version that a forward of the batch read.
    """
    oldest_versions: dict[tuple[int, int], int] = {}
    delays_of_stages: dict[int, list[int]] = {}
    for op in operations:
        if op.kind == "F":
            at = op.stage, op.batch
            oldest_versions[at] = min(oldest_versions.get(at, op.version), op.version)
        elif op.kind == "U":
            delay = op.version - 1 - oldest_versions[op.stage, op.batch]
            delays_of_stages.setdefault(op.stage, []).append(delay)
    return delays_of_stages


def horizon(operations: Sequence[Sequence[Op]], batch: int) -> int:
    """The last batch that any rank works on before it applies the update of `batch`."""
    update = ("U", batch)
    ops_before = (takewhile(lambda op: (op.kind, op.batch) != update, ops) for ops in operations)
    return max(op.batch for ops in ops_before for op in ops)
