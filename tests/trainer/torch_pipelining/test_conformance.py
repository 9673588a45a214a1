"""What torch lets stages and steps be, Schedule2BW takes as Schedule1F1B does: both train by their
equation and return the outputs and losses of each batch.
"""

import copy
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import groupby, product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, SplitPoint, pipeline
from torch.distributed.pipelining.microbatch import TensorChunkSpec

from pipegap.trainer.corrections.compensation import Taylor
from pipegap.trainer.executors.executor import Diverged
from pipegap.trainer.ranks.groups import Heartbeat, joined
from pipegap.trainer.torch_pipelining import Schedule2BW
from pipegap.trainer.torch_pipelining.schedule import TAKES_TARGET
from tests.support.gangs import Send, sent
from tests.support.torch_naive import (
    BATCHES,
    MICROBATCHES,
    RATE,
    ROWS,
    Block,
    assert_equal,
    batch_of_torch_naive,
    forward,
    loss,
    naive,
    stages_of,
)
from tests.support.torch_parallel import SETTINGS, assert_alike

CPU = torch.device("cpu")
EVALUATED_BEFORE = 3
OF_STEP = signature(Schedule1F1B.step).parameters
SCHEDULES = Schedule1F1B, Schedule2BW


class Plain(Block):
    """Without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped.p = 0.0


class Keyed(Plain):
    """With keyword arguments: one for each row, and others that are no tensors."""

    def forward(self, x: Tensor, *, gain: Tensor, flag: bool, word: str | None) -> Tensor:
        """[rows, width] and [rows], to the first."""
        assert flag is True
        assert word == "word"
        return super().forward(x * gain[:, None])


class Several(Plain):
    """That hands on three tensors: the second is detached, no gradient is of the third."""

    def forward(self, x: Tensor, side: Tensor | None = None, mask: Tensor | None = None) -> Any:
        """[rows, width] each."""
        if side is not None:
            x = x * mask + side
        output = super().forward(x)
        return output, torch.tanh(x).detach(), (x > 0).long()


class Joined(Several):
    """The last of these."""

    def forward(self, *given: Tensor) -> Any:
        """Three tensors, to the output alone."""
        return super().forward(*given)[0]


@dataclass(frozen=True)
class Case:
    """A way to make stages and steps. `takes` names what torch's `step` needs to have for it."""

    makes: Callable[[int, int], nn.Module] = lambda stage, num_stages: Plain()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    of_step: Mapping[str, Any] = field(default_factory=dict)
    loss_of: Callable[..., Tensor] = loss
    divisor: int = MICROBATCHES
    is_traced: bool = False
    has_shapes: bool = False
    are_split: bool = False
    has_groups: bool = False
    takes: str = "losses"


GAIN = torch.linspace(0.5, 1.5, ROWS, dtype=torch.float64)
KEYWORDS = {"gain": GAIN, "flag": True, "word": "word"}


def scaled(output: Tensor, target: Tensor, scale: float = 1.0) -> Tensor:
    """A loss with a keyword argument."""
    return scale * loss(output, target)


def doubled(output: Tensor, target: Tensor) -> Tensor:
    """The same with that argument."""
    return scaled(output, target, 2.0)


CASES = {
    "inferred shapes": Case(),
    "given shapes": Case(has_shapes=True),
    "traced": Case(is_traced=True),
    "keywords": Case(lambda *_: Keyed(), keywords=KEYWORDS),
    "several outputs": Case(  # torch 2.11 sends no integers
        lambda i, p: Joined() if i == p - 1 else Several(), takes="loss_kwargs"
    ),
    "summed losses": Case(options={"scale_grads": False}, divisor=1),
    "chunks": Case(
        options={"args_chunk_spec": (TensorChunkSpec(0),), "output_merge_spec": TensorChunkSpec(0)}
    ),
    "no outputs": Case(of_step={"return_outputs": False}),
    "a loss with keywords": Case(
        loss_of=doubled, of_step={"loss_kwargs": {"scale": 2.0}}, takes="loss_kwargs"
    ),
    "split batches": Case(
        lambda *_: Keyed(), keywords=KEYWORDS, are_split=True, takes="target_mbs"
    ),
    "finalized gradients": Case(of_step={"finalize_gradients": True}, takes="finalize_gradients"),
    "groups per edge": Case(has_groups=True, takes="finalize_gradients"),
}
NAMES = [name for name, case in CASES.items() if case.takes in OF_STEP]


def stage_of(case: Case, rank: int, num_stages: int) -> PipelineStage:
    """The stage of this rank."""
    stages = stages_of(*(lambda i=i: case.makes(i, num_stages) for i in range(num_stages)))
    rows = batch_of_torch_naive(0)[0].chunk(MICROBATCHES)[0]
    if case.is_traced:
        whole = nn.Sequential(*stages)
        cuts = {str(i): SplitPoint.BEGINNING for i in range(1, num_stages)}
        traced: Any = pipeline(whole, mb_args=(rows,), split_spec=cuts).build_stage(rank, CPU)
        return traced
    shaped = rows.clone().requires_grad_()
    inputs = rows if rank == 0 else shaped
    given: dict[str, Any] = {"input_args": (inputs,), "output_args": shaped}
    given = given if case.has_shapes else {}
    stage = PipelineStage(stages[rank], rank, num_stages, CPU, **given)
    stage.p2p_per_edge = case.has_groups  # as an environment variable of torch says
    return stage


class Loop:
    """The loop of a user, on one rank."""

    def __init__(self, kind: type[Schedule1F1B], case: Case, rank: int, num_stages: int) -> None:
        self.case, self.is_last = case, rank == num_stages - 1
        self.stage = stage_of(case, rank, num_stages)
        self.weights = [*self.stage.submod.parameters()]
        optimizer = torch.optim.SGD(self.weights, lr=RATE) if self.weights else None
        self.update = optimizer.step if optimizer else lambda: None
        self.is_2bw = kind is Schedule2BW
        options = {"update": self.update, **case.options} if self.is_2bw else case.options
        loss_of = scaled if "loss_kwargs" in case.of_step else case.loss_of
        self.schedule: Any = kind(self.stage, MICROBATCHES, loss_of, **options)
        self.losses = [torch.zeros(())] * 9  # of another loop: torch empties the list

    def step(self, t: int, call: str) -> tuple[list[Tensor], Any]:
        """The losses and outputs of a batch."""
        x, y = batch_of_torch_naive(t)
        given: dict[str, Any] = {**self.case.keywords, **self.case.of_step}
        if call == "eval":
            given.pop("finalize_gradients", None)
        inputs = (x,) if self.stage.is_first else ()
        if self.is_last:
            given |= {"target": y, "losses": self.losses}
        if self.case.are_split:
            given, inputs = self.split(given, inputs), ()
        output = getattr(self.schedule, call)(*inputs, **given)
        return [each.detach().clone() for each in self.losses] if self.is_last else [], output

    def split(self, given: dict[str, Any], inputs: tuple[Tensor, ...]) -> dict[str, Any]:
        """The same in microbatches that the user made."""
        parts = lambda x: x.chunk(MICROBATCHES) if isinstance(x, Tensor) else [x] * MICROBATCHES  # noqa: E731
        keywords = {name: parts(given.pop(name)) for name in self.case.keywords}
        every = range(MICROBATCHES)
        given["kwarg_mbs"] = [{name: of[i] for name, of in keywords.items()} for i in every]
        given["arg_mbs"] = [(rows,) for rows in parts(inputs[0])] if inputs else None
        given["target_mbs"] = [*parts(given.pop("target"))] if self.is_last else None
        return given

    def run(self) -> Any:
        """The weights in the end; losses and outputs of each batch, then those of evaluation."""
        made, evaluated = [], None
        for t in range(BATCHES):
            if t == EVALUATED_BEFORE:
                with self.schedule.drained() if self.is_2bw else nullcontext(), torch.no_grad():
                    evaluated = self.step(0, "eval")
            made.append(self.step(t, "step"))
            if not self.is_2bw:
                self.update()
                self.stage.submod.zero_grad()
        with self.schedule.drained() if self.is_2bw else nullcontext():
            return [weight.detach() for weight in self.weights], [*made, evaluated]


def as_rank(store: dist.Store, heartbeat: Heartbeat, send: Send, num_stages: int) -> None:
    """Sends what the loop made, of each case and schedule."""
    torch.set_num_threads(1)
    with joined(store, heartbeat.rank, num_stages, 1, CPU, heartbeat, 45):
        for name, kind in product(NAMES, SCHEDULES):
            send(Loop(kind, CASES[name], heartbeat.rank, num_stages).run())


def expected(case: Case, num_stages: int, delay: int) -> Any:
    """The same by the equation, in one process."""
    stages = stages_of(*(lambda i=i: case.makes(i, num_stages) for i in range(num_stages)))
    evaluated: list[Any] = []

    def evaluate(stage: nn.Module) -> None:
        if stage is stages[0]:
            parts = [*zip(*(of.chunk(MICROBATCHES) for of in batch_of_torch_naive(0)), strict=True)]
            with torch.no_grad():
                outputs = [forward(stages, x, i, case.keywords) for i, (x, _) in enumerate(parts)]
            losses = [case.loss_of(o, y) for o, (_, y) in zip(outputs, parts, strict=True)]
            evaluated.extend((losses, torch.cat(outputs)))

    changes = {EVALUATED_BEFORE: evaluate}
    options: dict[str, Any] = {"loss_of": case.loss_of, "keywords": case.keywords}
    losses, outputs = naive(stages, changes, delay=delay, divisor=case.divisor, **options)
    joined_outputs = [torch.cat(parts) for parts in outputs]
    return stages, [*zip(losses, joined_outputs, strict=True), tuple(evaluated)]


@pytest.mark.parametrize("num_stages", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_both_schedules_train_by_their_equation(num_stages: int) -> None:
    """On ranks, in float64."""
    by_rank = sent(as_rank, num_stages, num_stages)
    for (name, kind), *ends in zip(product(NAMES, SCHEDULES), *by_rank, strict=True):
        case = CASES[name]
        right, made = expected(case, num_stages, delay=int(kind is Schedule2BW))
        stages = stages_of(*(lambda i=i, c=case: c.makes(i, num_stages) for i in range(num_stages)))
        for stage, (weights, _) in zip(stages, ends, strict=True):
            for mine, its in zip(stage.parameters(), weights, strict=True):
                mine.data = its
        assert_equal(stages, right)
        for (losses, output), (right_losses, right_output) in zip(ends[-1][1], made, strict=True):
            torch.testing.assert_close(losses, [*right_losses], rtol=0, atol=1e-12)
            wanted = None if "return_outputs" in case.of_step else right_output
            torch.testing.assert_close(output, wanted, rtol=0, atol=1e-12)
        assert all(output is None for _, made in ends[:-1] for _, output in made), name


@pytest.mark.skipif(not hasattr(PipelineStage, "register_forward_context"), reason="not in 2.14")
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("kind", SCHEDULES)
def test_each_forward_has_its_context(kind: type[Schedule1F1B]) -> None:
    """Which knows its number, and whether torch asks for shapes."""
    loop, infos = Loop(kind, Case(), 0, 1), []
    loop.stage.register_forward_context(lambda info: (infos.append(info), nullcontext())[1])
    for t in range(2):
        loop.step(t, "step")
    numbers = [info.microbatch_index for info in infos if not info.is_metadata_inference]
    assert numbers == 2 * [*range(MICROBATCHES)]
    assert len(infos) == len(numbers) + 1


class Numbered(Plain):
    """That hands on what is no tensor, too."""

    def forward(self, x: Tensor) -> Any:
        """[rows, width], to the same and a number."""
        return super().forward(x), len(x)


def as_rank_without_tensors(store: dist.Store, heartbeat: Heartbeat, send: Send) -> None:
    """Sends, of each schedule, what torch says of the first stage."""
    for kind in SCHEDULES:
        own, said = dist.PrefixStore(kind.__name__, store), ""
        with joined(own, heartbeat.rank, 2, 1, CPU, heartbeat, 45):
            try:
                Loop(kind, Case(lambda *_: Numbered()), heartbeat.rank, 2).step(0, "step")
            except Exception as error:
                said = str(error)
        send(said)


def test_messages_are_tensors() -> None:
    """torch refuses others before a batch trains, whatever the schedule."""
    [said, _] = sent(as_rank_without_tensors, 2)
    assert len({*said}) == 1
    assert re.search("must be tensors|has no attribute 'size'", said[0]), said  # so torch 2.11 says


# Stages that are sharded, replicated, cut, compiled, recomputed or in bf16 end where a delay that
# is emulated on the same ranks ends, and where the equations end.

BY_SHAPE = {
    shape: list(names)
    for shape, names in groupby(
        sorted(SETTINGS, key=lambda n: (SETTINGS[n].data, SETTINGS[n].tensor)),
        lambda n: (SETTINGS[n].data, SETTINGS[n].tensor),
    )
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", BY_SHAPE, ids="{0[0]}x{0[1]}".format)
def test_wrapped_stages_train_alike(shape: tuple[int, int]) -> None:
    """But for rounding in sums over ranks; the clip acts, and replicas count once in its norm."""
    assert_alike(BY_SHAPE[shape])


# What one rank alone can know ends the training of every rank, at the same update.

RANKS, BAD_BATCH = 3, 1


def _scaled(output: Tensor, target: Tensor) -> Tensor:
    scaled: Tensor = torch.amp.GradScaler("cpu").scale(nn.functional.mse_loss(output, target))
    return scaled


def _infinite(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target) * torch.inf


def _plain(rank: int) -> tuple[nn.Module, dict[str, Any]]:
    return nn.Linear(2, 2), {}


def _one_is_unused(rank: int) -> tuple[nn.Module, dict[str, Any]]:
    module = nn.Linear(2, 2)
    if rank == 1:
        module.unused = nn.Parameter(torch.ones(2))
    return module, {"correction": partial(Taylor, coefficient=0.1, decay=0.9), "num_updates": 4}


def _one_is_frozen(rank: int) -> tuple[nn.Module, dict[str, Any]]:
    module = nn.Linear(2, 2)
    if rank == RANKS - 1:
        module.weight.requires_grad_(False)
    return module, {"tied": ["weight"]} if rank in (0, RANKS - 1) else {}


CASES_OF_ALIKE: dict[str, tuple[Callable[..., Tensor], Callable[[int], Any], str]] = {
    "GradScaler": (_scaled, _plain, "loss_fn=GradScaler.scale: must not scale"),
    "not finite": (_infinite, _plain, "the gradient of batch 1 is not finite"),
    "no gradient": (
        nn.functional.mse_loss,
        _one_is_unused,
        "a correction of gradients needs one of every",
    ),
    "tied to a frozen weight": (
        nn.functional.mse_loss,
        _one_is_frozen,
        "a tied weight got no gradient",
    ),
}


def as_rank_of_alike(store: dist.Store, heartbeat: Heartbeat, send: Send) -> None:
    """Sends, of each case, how far the rank came, and what stopped it."""
    torch.set_num_threads(1)
    for name, (bad_loss, stage_of, _) in CASES_OF_ALIKE.items():
        own = dist.PrefixStore(name, store)
        with joined(own, heartbeat.rank, RANKS, 1, CPU, heartbeat, 60):
            send(stopped(heartbeat.rank, bad_loss, stage_of))


def stopped(
    rank: int,
    bad_loss: Callable[[Tensor, Tensor], Tensor],
    stage_of: Callable[[int], tuple[nn.Module, dict[str, Any]]],
) -> tuple[int, int, str]:
    """Batches taken and updates made until an error, and what it says."""
    (module, options), x = stage_of(rank), torch.ones(RANKS, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        is_bad = schedule.num_taken > BAD_BATCH  # counted before its forwards
        return (bad_loss if is_bad else nn.functional.mse_loss)(output, target)

    schedule = Schedule2BW(
        PipelineStage(module, rank, RANKS, CPU), RANKS, loss, update=optimizer.step, **options
    )
    inputs = (x,) if rank == 0 else ()
    try:
        for _ in range(4):
            schedule.step(*inputs, target=x if rank == RANKS - 1 else None)
    except (ValueError, RuntimeError, Diverged) as error:
        return schedule.num_taken, schedule.num_made, str(error)
    return schedule.num_taken, schedule.num_made, ""


def test_every_rank_refuses_alike() -> None:
    for (_, _, says), *ends in zip(
        CASES_OF_ALIKE.values(), *sent(as_rank_of_alike, RANKS), strict=True
    ):
        assert len({*ends}) == 1, ends
        _, num_made, said = ends[0]
        assert num_made <= BAD_BATCH
        assert says in said


# An exception out of `step` leaves a schedule that can go on, or that says that it cannot.

CLIP_NORM = 0.05


class Once(Exception):
    """What a loop catches to try again."""


def failing(call: Callable[..., object], number: int) -> Callable[..., object]:
    """The call, which raises the time `number`."""
    calls = iter(range(1, 1_000))

    def called(*given: object) -> object:
        if next(calls) == number:
            raise Once
        return call(*given)

    return called


class LoopOfHalfway:
    """A loop of a user, on the only stage."""

    def __init__(self) -> None:
        [self.module] = stages_of(Block)
        self.module.dropped.p = 0.0
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=RATE)
        stage = PipelineStage(self.module, 0, 1, torch.device("cpu"))
        self.schedule = Schedule2BW(stage, MICROBATCHES, self.loss, update=self.update)
        self.loss_of = loss

    def update(self) -> None:
        """With a clip that acts."""
        self.schedule.clip_grad_norm_(CLIP_NORM)
        self.optimizer.step()

    def loss(self, *given: torch.Tensor) -> torch.Tensor:
        """What may be replaced."""
        return self.loss_of(*given)

    def step(self, t: int) -> None:
        """Tries each batch until it is taken."""
        x, y = batch_of_torch_naive(t)
        for _ in range(2):
            with suppress(Once, RuntimeError):
                self.schedule.step(x, target=y)
                return


def _in_forward(loop: LoopOfHalfway, number: int) -> None:
    hook = failing(lambda *_: None, number)
    loop.module.up.register_forward_pre_hook(hook)


def _in_loss(loop: LoopOfHalfway, number: int) -> None:
    loop.loss_of = failing(loss, number)


def _in_backward(loop: LoopOfHalfway, number: int) -> None:
    loop.module.down.register_full_backward_pre_hook(failing(lambda *_: None, number))


def _in_evaluation(loop: LoopOfHalfway, number: int) -> None:
    _in_loss(loop, number)
    with pytest.raises(Once), loop.schedule.drained():
        loop.schedule.eval(batch_of_torch_naive(0)[0], target=batch_of_torch_naive(0)[1])


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("fails", [_in_forward, _in_loss, _in_backward, _in_evaluation])
@pytest.mark.parametrize("before", [0, 2])
def test_a_batch_that_is_tried_again(
    fails: Callable[[LoopOfHalfway, int], None], number: int, before: int
) -> None:
    """Without other ranks nothing of it is left, in the middle or at its start."""
    loop, [right] = LoopOfHalfway(), stages_of(Block)
    right.dropped.p = 0.0
    for t in range(BATCHES):
        if t == before:
            fails(loop, number)
        loop.step(t)
    assert loop.schedule.num_taken == BATCHES
    with loop.schedule.drained():
        naive([right], {}, clip_norm=CLIP_NORM)
        assert_equal([loop.module], [right])


@pytest.mark.usefixtures("one_rank")
def test_going_back() -> None:
    """A state of an earlier batch may be loaded into the schedule that went on."""
    loop, [right] = LoopOfHalfway(), stages_of(Block)
    right.dropped.p = 0.0
    parts = loop.module, loop.schedule
    for t in (0, 1):
        loop.step(t)
    with loop.schedule.drained():
        saved = copy.deepcopy([part.state_dict() for part in parts])
    loop.step(9)
    with loop.schedule.drained():
        for part, state in zip(parts, saved, strict=True):
            part.load_state_dict(state)
    for t in range(2, BATCHES):
        loop.step(t)
    with loop.schedule.drained():
        naive([right], {}, clip_norm=CLIP_NORM)
        assert_equal([loop.module], [right])


@pytest.mark.usefixtures("one_rank")
def test_an_update_that_fails() -> None:
    """It may have stepped some weights: each later call says so. The module has its own weights."""
    loop = LoopOfHalfway()
    schedule, own = loop.schedule, [*loop.module.parameters()]
    schedule.update = failing(lambda: None, 1)
    x, y = batch_of_torch_naive(0)
    schedule.step(x, target=y)
    with pytest.raises(Once):
        schedule.step(x, target=y)
    says = r"batch 1 stopped halfway, by Once, .* make the schedule and its stage anew"
    for call in (schedule.step, schedule.eval):
        with pytest.raises(RuntimeError, match=says):
            call(x, target=y)
    with pytest.raises(RuntimeError, match=says), schedule.drained():
        pass
    with pytest.raises(RuntimeError, match=says):
        schedule.state_dict()
    assert all(a is b for a, b in zip(own, loop.module.parameters(), strict=True))


@pytest.mark.skipif(not TAKES_TARGET, reason="torch 2.11 refuses such outputs before they train")
@pytest.mark.usefixtures("one_rank")
def test_outputs_that_cannot_be_joined() -> None:
    """torch joins them when the batch was trained: another try would train on it twice."""
    loop = LoopOfHalfway()
    sizes = iter(range(1, 1_000))
    loop.module.register_forward_hook(lambda module, args, output: output[:, : next(sizes)])
    loop.loss_of = lambda output, target: output.square().mean()
    x, y = batch_of_torch_naive(0)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        loop.schedule.step(x, target=y)
    with pytest.raises(RuntimeError, match="batch 0 stopped halfway"):
        loop.schedule.step(x, target=y)
