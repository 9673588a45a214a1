"""The passes of a stage in 1F1B's order without an end, their messages, and the shapes of these."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from typing_extensions import override

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.executors.channel import POSTED_EARLY, own_stream
from pipegap.trainer.schedules.operations import Op, Schedule, by_turns
from pipegap.trainer.schedules.recipes import pipedream_2bw
from pipegap.trainer.torch_pipelining.two_versions import TwoVersions
from pipegap.trainer.tracing.trace import Clock

# The call by which torch learns the shapes of a stage's outputs, without a trace on the stage.

HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


class Unseen(nn.Module):
    """Calls a module without its hooks, and without a change of its buffers.

    torch calls the module of a stage before the first batch and after evaluations, and a later
    stage on memory that nobody wrote: running statistics would be infinite, and calls be counted.
    Its hooks are called where `calls_hooks`, and where a call without them fails.
    """

    def __init__(self, *, calls_hooks: bool) -> None:
        super().__init__()
        self._calls_hooks = calls_hooks
        self._kinds: list[Any] | None = None  # stays so if the user told torch the outputs

    def of(self, module: nn.Module) -> "Unseen":
        """This, with the module that it calls."""
        self.module = module
        return self

    @override
    def __getattr__(self, name: str) -> Any:
        """What the module has: a loss may ask the stage for its head."""
        lookup = super().__getattr__
        return lookup(name) if name in ("module", "training") else getattr(lookup("module"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        with ExitStack() as stack:
            for part in self.module.modules():
                copies = {k: b if b is None else b.clone() for k, b in part._buffers.items()}
                stack.enter_context(_other(part._buffers, copies))
            output = self._called(*args, **kwargs)
        self._kinds = _kinds(_tensors(output))
        return output

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        if not self._calls_hooks:
            with ExitStack() as stack:
                for part in self.module.modules():
                    for name in HOOKS:
                        stack.enter_context(_other(getattr(part, name), {}))
                try:
                    return self.module(*args, **kwargs)
                except Exception:  # one that its hooks prevent, or the user's own
                    pass
        return self.module(*args, **kwargs)

    def require_alike(self, output: Any, stage: Any) -> None:
        """Raises RuntimeError if the next stage has no buffers for what the module returned, or
        sends no gradients back that it requires."""
        outputs = _tensors(output)
        if self._kinds not in (None, kinds := _kinds(outputs)):
            raise RuntimeError(
                f"the stage returns {kinds}, and returned {self._kinds} when torch made buffers, "
                "without hooks: neither hooks nor a batch may change shapes and dtypes"
            )
        # Of torch's descriptions: to ask it for the receives would allocate what they fill.
        comes_back = [getattr(info, "tensor_meta", info) for info in stage.grad_recv_info[0]]
        if any(tensor.requires_grad for tensor in outputs) and not any(comes_back):
            raise RuntimeError(
                "the stage requires gradients, and did not when torch made buffers: the next stage "
                "sends none; make the schedule and its stage anew"
            )


def _tensors(output: Any) -> list[Tensor]:
    outputs = output if isinstance(output, tuple | list) else (output,)
    return [one_output for one_output in outputs if isinstance(one_output, Tensor)]


def _kinds(tensors: list[Tensor]) -> list[Any]:
    return [(*tensor.shape, tensor.dtype) for tensor in tensors]


@contextmanager
def _other(content: dict[Any, Any], replacement: dict[Any, Any]) -> Iterator[None]:
    """A context in which a dictionary has another content."""
    content_before = dict(content)
    content.clear()
    content.update(replacement)
    try:
        yield
    finally:
        content.clear()
        content.update(content_before)


# The passes of a stage in 1F1B's order without an end, and their messages.

Pass = tuple[str, int, int]
"""Its kind, the batch and the microbatch."""
Call = Callable[[int, int], None]
"""What makes a pass of a batch and a microbatch."""


class Passes:
    """Makes passes, each on the weights of its batch: `lead` forwards are ahead of the backwards.

    Outside of `run` the stage has the user's module, with the newest weights.
    """

    def __init__(
        self,
        stage: PipelineStage,
        num_microbatches: int,
        lead: int,
        versions: TwoVersions,
        trace: bool,
    ) -> None:
        self._stage, self._lead, self._versions = stage, lead, versions
        self.num_microbatches = num_microbatches
        self.neighbours = Neighbours(stage)
        self._clock = Clock(stage.device, True) if trace else None
        self.are_known = False
        """Whether other ranks know of passes of the last `run`, or copies have begun with them."""
        self.posted: dict[Pass, list[dist.Work]] = {}
        """Receives of passes to come: those that an exception left, outside of `run`."""
        self._in_flight: dict[int, Any] = {}  # activations, which torch's `step` would drop

    def run(self, first: int, num_taken: int, backward: Call, forward: Call | None = None) -> None:
        """Makes the passes of batch `num_taken` − 1; without a `forward` those that are left.
        The pipeline was drained before batch `first`.

        What a pass receives is posted up to two passes before (POSTED_EARLY). No buffer is in use
        by then: its backward came three passes before a forward, or earlier.
        """
        stage, m = self._stage, self.num_microbatches
        end = (num_taken - first) * m
        steps = range(end, end + self._lead) if forward is None else range(end - m, end)
        numbered = by_turns(self._lead, end, steps)
        passes = [(kind, first + number // m, number % m) for kind, _, number in numbered]
        # torch clears its cache of activations at each `step`: those in flight are put back.
        name = "fwd_cache" if hasattr(stage, "fwd_cache") else "_forward_chunk_states"  # torch 2.15
        stored: dict[int, Any] = getattr(stage, name)
        stored.update(self._in_flight)
        self.are_known = not self._versions.are_leaves
        self._versions.forget_gradients()
        try:
            self._make(passes, {FORWARD: forward, BACKWARD: backward})
        except BaseException:
            stored.clear()
            raise
        finally:
            stage.submod = self._versions.release()
        self._in_flight = dict(stored)

    def _make(self, passes: Sequence[Pass], calls: dict[str, Call | None]) -> None:
        stage, early = self._stage, self.neighbours.posted_early
        self.post(passes[:early])
        for number, one_pass in enumerate(passes, early):
            kind, batch, i = one_pass
            self.post(passes[number : number + 1])
            if works := self.posted.get(one_pass):
                self.timed(f"wait {kind}", batch, i, wait_for, works)
                works.clear()
            stage.submod = self._versions.module(batch)
            infos = () if self.are_known else stage.args_recv_info[i]
            buffers = [getattr(info, "buffer", None) for info in infos]
            try:
                self.timed(kind, batch, i, calls[kind], batch, i)
            except BaseException:  # from 2.15 on torch takes the buffers, which another try needs
                for info, buffer in zip(infos, buffers, strict=True):
                    info.buffer = buffer
                raise
            self.posted.pop(one_pass, None)
            self.are_known |= stage.num_stages > 1

    def post(self, passes: Sequence[Pass]) -> None:
        """Posts what passes to come receive, once."""
        for one_pass in passes:
            kind, _, i = one_pass
            if kind in self.neighbours.receives and one_pass not in self.posted:
                self.posted[one_pass] = self.neighbours.receive(kind, i)

    def timed(self, kind: str, batch: int, i: int, call: Any, *arguments: Any) -> Any:
        """Makes a call, which is an F, a B, a U, or a wait before one ("wait F") in the trace."""
        if self._clock is None:
            return call(*arguments)
        op = Op("F", self._stage.stage_index, batch, i, version=0, tied_version=0)
        with self._clock.span(op, kind):
            return call(*arguments)

    def between_drains(self) -> AbstractContextManager[None]:
        """A context around what makes the last passes before a drain."""
        return self._clock.between_drains() if self._clock else nullcontext()

    def write_trace(self, folder: Path, trial: Schedule, runs: list[tuple[int, int]]) -> None:
        """Writes what each rank did when, beside the simulation of a trial with these `runs` from
        drain to drain. Raises BadInput if nothing was timed."""
        if self._clock is None:
            raise BadInput("trace", False, "must be True for a trace to be written")
        spans = of_every_rank(self._clock.spans, self._stage.group)
        if self._stage.is_first:
            from pipegap.trainer.tracing.timeline import leave  # altair is slow to load

            leave(folder, spans, trial, runs)


class WithoutFlush:
    """What every schedule without a flush counts, and whether it can go on."""

    num_taken = 0
    """Batches that it took, so the number of the next one."""
    num_made = 0
    """Updates."""
    _drains: tuple[int, ...] = (0,)  # batches before which the pipeline was drained
    _failed = ""  # what stopped a batch halfway
    _slack = False
    _synchronous_start: int
    _passes: Passes
    _stage: Any
    newest: Any
    """The stage's module."""

    @contextmanager
    def drained(self) -> Iterator[Any]:
        """Finishes every batch and update in flight; yields the stage's module, the newest weights.

        It takes the time of a bubble and changes no number of the training.
        """
        self._require_whole()
        with self._noted():
            self._drain()
        yield self.newest

    def _drain(self) -> None:
        raise NotImplementedError

    def write_trace(self, folder: Path) -> None:
        """Writes, in `drained()`, trace.json for Perfetto and timeline.svg, as a trial does: what
        each rank did when, beside its simulation. All ranks of the pipeline call it, and the first
        one writes. Raises BadInput without `trace=True`.
        """
        self._require_drained()
        trial = pipedream_2bw(
            self.num_made,
            num_stages=self._stage.num_stages,
            num_microbatches=self._passes.num_microbatches,
            slack=self._slack,
            synchronous_start=min(self._synchronous_start, self.num_made),
            synchronous_cooldown=0,
        )
        self._passes.write_trace(folder, trial, [*pairwise(self._drains)])

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """A context whose exception stops a batch halfway."""
        try:
            yield
        except BaseException as error:
            self._note(error)
            raise

    def _note(self, error: BaseException) -> None:
        self._failed = f"batch {self.num_taken - 1} stopped halfway, by {type(error).__name__}"

    def _require_whole(self) -> None:
        if self._failed:
            mend = "make the schedule and its stage anew, from a checkpoint"
            raise RuntimeError(f"{self._failed}, and other ranks may have gone on: {mend}")

    def _require_drained(self) -> None:
        self._require_whole()
        if self.num_made < self.num_taken:
            raise RuntimeError("evaluate, save and load inside `with schedule.drained():`")


FORWARD, BACKWARD = "F", "B"
Operations = Callable[[int], list[dist.P2POp]]


def of_every_rank(value: object, group: Any = None) -> list[Any]:
    """Return the values of all ranks of a group, by rank; the whole world is the default."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def ranks_of(stage: PipelineStage) -> list[int]:
    """Return the ranks of the stage's pipeline, in the order of its stages."""
    return dist.get_process_group_ranks(stage.group or dist.group.WORLD)


def new_group(stage: PipelineStage, ranks: Sequence[int]) -> Any:
    """Return a new group of these ranks, None outside of it, with the timeout of the stage's group.
    All ranks of all pipelines must make this call, and groups of different pipelines do not
    overlap.

    Without that (`use_local_synchronization`) torch names a group by how many groups a rank has
    seen, which may differ within a pipeline: then its ranks wait for each other for ever.
    """
    groups = [list(group) for group in dict.fromkeys(of_every_rank(tuple(ranks)))]
    whole: Any = stage.group or dist.group.WORLD
    options = getattr(whole._get_backend(stage.device), "options", None)
    timeout = getattr(options, "_timeout", None)
    return dist.new_subgroups_by_enumeration(groups, timeout=timeout)[0]


class Neighbours:
    """Sends and receives what a stage's passes name, without waiting for sends.

    Under NCCL the messages of one communicator wait for each other, whatever their direction. So
    there are four groups of all stages, for forwards and backwards between an even stage and the
    next, and between an odd one and the next: a rank uses each for one edge in one direction. Each
    edge is used once when it is made, since NCCL builds a communicator at its first use, by a call
    that waits for both ranks.
    """

    def __init__(self, stage: PipelineStage) -> None:
        self.receives: dict[str, Operations] = {}
        self._sends: dict[str, Operations] = {}
        if not stage.is_first:
            self.receives[FORWARD] = stage.get_fwd_recv_ops
            self._sends[BACKWARD] = stage.get_bwd_send_ops
        if not stage.is_last:
            self.receives[BACKWARD] = stage.get_bwd_recv_ops
            self._sends[FORWARD] = stage.get_fwd_send_ops
        self._leaving: deque[tuple[Tensor, dist.Work]] = deque()
        self._capacity = 4 * stage.num_stages
        self._stream, self.posted_early = own_stream(stage.device), POSTED_EARLY[stage.device.type]
        self._groups: dict[tuple[str, int], Any] = {}
        ranks, me, message = ranks_of(stage), dist.get_rank(), torch.zeros(1, device=stage.device)
        for first, kind in product((0, 1), (FORWARD, BACKWARD)):
            group = new_group(stage, ranks)
            for edge in list(pairwise(ranks))[first::2]:  # every other edge: none share a rank
                if me in edge:
                    # The other end; a backward goes from the later rank to the earlier one.
                    peer, sends = sum(edge) - me, edge[kind == BACKWARD] == me
                    self._groups[kind, peer] = group
                    call = dist.isend if sends else dist.irecv
                    self._start(kind, dist.P2POp(call, message, peer, group)).wait()

    def receive(self, kind: str, microbatch: int) -> list[dist.Work]:
        """Posts the receives of one forward or backward, `ahead` passes before it."""
        operations = self.receives[kind](microbatch)
        if self._stream is None:
            return [self._start(kind, op) for op in operations]
        with torch.cuda.stream(self._stream):
            works = [self._start(kind, op) for op in operations]
        # The next receives wait for the pass before this one, which had buffers.
        self._stream.wait_stream(torch.cuda.current_stream())
        return works

    def send(self, kind: str, microbatch: int) -> None:
        """Starts the sends of one forward or backward; their tensors must not change any more."""
        if kind not in self._sends:
            return
        for op in self._sends[kind](microbatch):
            op.tensor = op.tensor.detach()  # kept until it has left, which its graph need not be
            self._leaving.append((op.tensor, self._start(kind, op)))
        self.flush(self._capacity)

    def flush(self, capacity: int = 0) -> None:
        """Lets go of messages that have left, and waits until at most `capacity` have not."""
        leaving = self._leaving
        while len(leaving) > capacity or (leaving and leaving[0][1].is_completed()):
            leaving.popleft()[1].wait()

    def _start(self, kind: str, op: dist.P2POp) -> dist.Work:
        group = self._groups.get((kind, op.peer))
        if group is None:
            raise RuntimeError(f"rank {op.peer} is no neighbour: messages may not skip a stage")
        work: dist.Work = op.op(op.tensor, op.peer, group)
        return work


def wait_for(works: Sequence[dist.Work]) -> None:
    """Waits for messages, on a GPU without the host."""
    for work in works:
        work.wait()
