"""`Schedule2BW` on true ranks makes the numbers of the naive equations, to the last bit."""

import copy
import json
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.optim import SGD, Optimizer

from pipegap.trainer.base.errors import BadInput, GangFailed
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.delayed.arm import correction_node
from pipegap.trainer.ranks.groups import Heartbeat
from pipegap.trainer.schedules.proof import simulate
from pipegap.trainer.schedules.recipes import pipedream_2bw
from pipegap.trainer.torch_pipelining import Schedule2BW
from pipegap.trainer.torch_pipelining import schedule as schedule_2bw
from pipegap.trainer.torch_pipelining.late_update import LateSums, LateUpdate, Steps, way_back
from pipegap.trainer.torch_pipelining.two_versions import TwoVersions
from tests.support import choices, every_correction
from tests.support.gangs import Send
from tests.support.gpu_rules import OF_2BW
from tests.support.torch_naive import differences, expected, of_our_pipeline
from tests.support.torch_pipeline import (
    LOOSE,
    OF_TORCH,
    Case,
    T,
    Training,
    as_nccl_rank,
    as_rank,
    on_ranks,
)

DAILY: dict[int, list[Case]] = {
    2: [
        Case(2, error_feedback=1.0, drains={3: "evaluate", 5: "save"}),
        Case(4, "torch_muon", 1.0, drains={1: "save", 4: "save in parts"}),
        Case(4, "our_muon", slack=True, clip_norm=LOOSE),
        Case(2, "torch_muon", 1.0, shares="blocks"),
        Case(2, correction="weight_prediction", drains={3: "save"}),  # its twins lie alone
        Case(2, correction="taylor"),  # whose gradients see the newest weights
    ],
    3: [
        Case(3, "sgd", 1.0, shares="stages", drains={2: "evaluate", 4: "save"}),
        Case(6, "adamw", 1.0, drains={5: "drain"}, synchronous_start=2),
    ],
}


def assert_all_equal(num_stages: int, cases: list[Case], **program: Any) -> None:
    for case, trained in zip(cases, on_ranks(num_stages, cases, **program), strict=True):
        assert not differences(trained, expected(case, num_stages)), case


@pytest.mark.parametrize("num_stages", DAILY)
def test_equals_the_equations(num_stages: int) -> None:
    assert_all_equal(num_stages, DAILY[num_stages])


@pytest.mark.parametrize("num_stages", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_equals_our_own_pipeline(num_stages: int) -> None:
    """Without an oracle in between: the executor of a trial makes the same weights and losses."""
    names = ["muon", "adamw", "muonh"]  # muonh: norms that a correction keeps
    if num_stages == 4:  # kron draws random numbers for one weight after the other
        names = [name for name in choices.OPTIMIZERS if name != "kron"]
    averaging = "schedule_free_adamw"  # takes no Error Feedback
    cases = [Case(4, f"our_{name}", error_feedback=float(name != averaging)) for name in names]
    for name, case, trained in zip(names, cases, on_ranks(num_stages, cases), strict=True):
        assert not differences(trained, of_our_pipeline(case, name, num_stages)), name


@pytest.mark.slow
def test_every_correction() -> None:
    ends = {1: "save in parts", 3: "save", 5: "save in parts"}
    names = [name for name in every_correction.NAMES if not every_correction.looks_ahead(name)]
    cases = [Case(2, correction=name, drains=ends) for name in names]
    for case, trained in zip(cases, on_ranks(2, cases), strict=True):
        right = expected(case, 2)
        if case.correction == "adaptive_error_feedback":  # its oracle adds squares in another order
            torch.testing.assert_close(trained, right, rtol=0, atol=3e-7)
        else:
            assert not differences(trained, right), case


def as_mutants(
    mutants: Sequence[str], store: dist.Store, heartbeat: Heartbeat, send: Send, *rest: Any
) -> None:
    """Like `as_rank`, once for each mutant, with what it replaces."""
    for mutant in mutants:
        with ExitStack() as stack:
            for owner, name, replacement in MUTANTS[mutant]:
                stack.enter_context(patch.object(owner, name, replacement))
            as_rank(dist.PrefixStore(mutant, store), heartbeat, send, *rest)


def _norm_of_the_batch_before(self: LateSums, batch: int) -> Tensor:
    norm = TAKE(self, batch)
    before = getattr(self, "before", norm)
    self.before = norm  # type: ignore[attr-defined]
    return before


def _scheduler_first(self: Training) -> None:
    self.schedule.clip_grad_norm_(self.case.clip_norm)
    self.scheduler.step()
    self.optimizer.step()


TAKE, FACTORS, MODULE = LateSums.take, ErrorFeedback._factors, TwoVersions.module
MUTANTS: dict[str, list[tuple[type, str, Callable[..., Any]]]] = {
    "one version": [(TwoVersions, "module", lambda self, _: MODULE(self, 0))],
    "versions swapped": [(TwoVersions, "module", lambda self, t: MODULE(self, t + 1))],
    "a twin updated in place": [(TwoVersions, "make_room", lambda self, t: self.weights(t + 1))],
    "the norm of another batch": [(LateSums, "take", _norm_of_the_batch_before)],
    "the other sign": [(ErrorFeedback, "_factors", lambda *given: -FACTORS(*given))],
    "a learning rate one off": [(Training, "update", _scheduler_first)],
}
"""By name: what each replaces, and by what."""


BY_AUTOGRAD = [name for name in MUTANTS if "version" in name]
"""Mutants at which autograd raises: weights that a backward needs were changed in place."""


def test_mutants_are_noticed() -> None:
    mutants = [name for name in MUTANTS if name not in BY_AUTOGRAD]
    case = Case(2, error_feedback=1.0)
    right = expected(case, 2)
    trained = on_ranks(2, [case], partial(as_mutants, mutants))
    assert [bool(differences(of, right)) for of in trained] == [True] * len(mutants)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", BY_AUTOGRAD)
def test_autograd_notices_a_mutant(mutant: str) -> None:
    with pytest.raises(GangFailed, match="Failed to run stage backward"):
        on_ranks(2, [Case(2, error_feedback=1.0)], partial(as_mutants, [mutant]))


@pytest.mark.parametrize("num_stages", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_wait_for_each_other_where_nccl_would(num_stages: int) -> None:
    """And end, though every pass loads kernels. Where stages share a weight only the first of each
    kind may: the last stage begins the sum of that weight long before the first stage."""
    drained = Case(num_stages, error_feedback=1.0, drains={4: "drain"})
    always = partial(as_nccl_rank, always=OF_2BW)
    at_first = partial(as_nccl_rank, at_first=OF_2BW)
    assert_all_equal(num_stages, [drained], program=always)
    assert_all_equal(num_stages, [replace(drained, shares="stages")], program=at_first)


SLOW: dict[str, tuple[tuple[int, ...], Callable[[int], list[Case]]]] = {
    "optimizers and numbers of microbatches": (
        (2, 3, 4),
        lambda p: [
            Case(m, name, feedback)
            for m, name, feedback in product(
                (p, 2 * p), ("sgd", "adamw", "torch_muon", "our_muon"), (0.0, 1.0)
            )
        ],
    ),
    "every position of a drain": (
        (2, 3),
        lambda p: [
            *(
                Case(p, drains={t: what}, error_feedback=1.0)
                for t, what in product(range(T), ("drain", "evaluate", "save"))
            ),
            Case(p, drains=dict.fromkeys(range(T), "save"), error_feedback=1.0),
        ],
    ),
    "slack and a synchronous start": (
        (1, 2, 4),
        lambda p: [
            Case(8, error_feedback=1.0, slack=slack, synchronous_start=n)
            for slack, n in product((False, True), (0, 1, 3))
        ],
    ),
    # Both copies stay equal to the last bit, and count once in the norm.
    "stages that share a weight": (
        (2, 3, 4),
        lambda p: [
            Case(p, "adamw", 1.0, shares="stages", drains={3: "save in parts", 5: "drain"}),
            Case(2 * p, "our_muon", 1.0, shares="stages", synchronous_start=2),
            Case(8, correction="taylor", shares="stages", slack=True),
            Case(4, correction="weight_prediction", shares="stages"),
        ],
    ),
    "every optimizer of torch": (
        (2,),
        lambda p: [Case(p, f"torch_{name}", error_feedback=1.0) for name in OF_TORCH],
    ),
}
"""What is tried → numbers of stages, and the cases of each."""


@pytest.mark.slow
@pytest.mark.parametrize(("what", "p"), [(what, p) for what in SLOW for p in SLOW[what][0]])
def test_more_cases_equal_the_equations(what: str, p: int) -> None:
    assert_all_equal(p, SLOW[what][1](p))


# An `update` steps the stage's weights by their gradients, or is refused.

Update = Callable[[nn.Module], object]
NONE, CLEARED = "made no optimizer step", "cleared the gradients before the optimizer's step"


def _cleared(optimizer: Optimizer, *, to_none: bool) -> None:
    optimizer.zero_grad(set_to_none=to_none)
    optimizer.step()


def _by_hand(module: nn.Module) -> None:
    with torch.no_grad():
        for weight in module.parameters():
            weight.sub_(weight.grad)


def _two(module: nn.Module, *, clears: bool) -> None:
    """An optimizer for each weight; the second one's loop is that of a tutorial."""
    first, second = (SGD([weight]) for weight in module.parameters())
    first.step()
    if clears:
        second.zero_grad()
    second.step()


def _twice(module: nn.Module) -> None:
    for optimizer in (SGD(module.parameters()), SGD(module.parameters())):
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (lambda module: SGD(module.parameters()).step(), None),
        (lambda module: SGD(module.parameters(), lr=0.0).step(), None),
        (_by_hand, None),
        (lambda module: module.zero_grad(), None),  # this batch is left out
        (lambda module: _two(module, clears=False), None),
        (_twice, None),
        (lambda module: None, NONE),
        (lambda module: SGD(nn.Linear(2, 2).parameters()).step(), NONE),
        (lambda module: _cleared(SGD(module.parameters()), to_none=True), CLEARED),
        (lambda module: _cleared(SGD(module.parameters()), to_none=False), CLEARED),
        (lambda module: _two(module, clears=True), CLEARED),
    ],
    ids=[
        *("step", "no rate", "by hand", "left out", "two", "twice", "nothing", "others"),
        *("zero_grad first", "zeros first", "zero_grad between"),
    ],
)
def test_what_an_update_may_do(update: Update, says: str | None) -> None:
    module = nn.Linear(2, 2)
    module(torch.ones(2)).sum().backward()
    refused = pytest.raises(RuntimeError, match=says) if says else nullcontext()
    with refused, Steps([*module.parameters()], looks=True):
        update(module)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("to_none", [True, False])
def test_an_update_that_begins_with_zero_grad(to_none: bool) -> None:
    """A schedule refuses it at its first update, before any weight is stepped."""
    module, x = nn.Linear(2, 2), torch.ones(2, 2)
    optimizer, before = SGD(module.parameters()), module.weight.detach().clone()
    stage = PipelineStage(module, 0, 1, torch.device("cpu"))
    update = partial(_cleared, optimizer, to_none=to_none)
    schedule = Schedule2BW(stage, 2, nn.MSELoss(), update=update)
    schedule.step(x, target=x)
    with pytest.raises(RuntimeError, match=CLEARED), schedule.drained():
        pass
    assert torch.equal(module.weight, before)


def _averaging(weights: list[nn.Parameter]) -> Callable[[], object]:
    """What is evaluated is an average of its own, to which no update belongs."""
    optimizer = AdamWScheduleFree(weights)
    optimizer.train()
    return optimizer.step


def _of_copies(weights: list[nn.Parameter]) -> Callable[[], object]:
    """In another dtype, as masters are: what else happens to a weight is lost."""
    copies = [weight.detach().double().requires_grad_() for weight in weights]
    optimizer = SGD(copies, lr=0.1)

    def step() -> None:
        for mine, weight in zip(copies, weights, strict=True):
            mine.grad = weight.grad.double()
        optimizer.step()
        torch._foreach_copy_([weight.detach() for weight in weights], copies)

    return step


def _with_masters(weights: list[nn.Parameter]) -> Callable[[], object]:
    """In a wider dtype, in its state: what else happens to a weight is lost."""
    optimizer = SGD(weights, lr=0.1)

    def step() -> None:
        optimizer.step()
        for weight in weights:
            optimizer.state[weight]["master_param"] = weight.detach().float()

    return step


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("coefficient", [1.0, 0.0])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_averaging, "error_feedback=1.0: must be 0 with an optimizer that averages"),
        (_of_copies, "error_feedback=1.0: must be 0 where an optimizer steps copies"),
        (_with_masters, "error_feedback=1.0: must be 0 where an optimizer steps copies"),
    ],
)
def test_optimizers_without_error_feedback(
    make: Callable[[list[nn.Parameter]], Callable[[], object]], says: str, coefficient: float
) -> None:
    module, x = nn.Linear(2, 2).bfloat16(), torch.ones(2, 2).bfloat16()
    stage = PipelineStage(module, 0, 1, torch.device("cpu"))
    step, feedback = make([*module.parameters()]), {"error_feedback": coefficient}
    schedule = Schedule2BW(stage, 2, nn.MSELoss(), update=step, **feedback)
    schedule.step(x, target=x)
    allowed = pytest.raises(BadInput, match=says)
    with allowed if coefficient else nullcontext(), schedule.drained():
        pass


@pytest.mark.usefixtures("one_rank")
def test_an_update_is_made_outside_of_the_autocast_of_a_step() -> None:
    """One that a drain makes is, so an optimizer that multiplies matrices would make two kinds."""
    module, x, were = nn.Linear(2, 2), torch.ones(2, 2), []
    stage = PipelineStage(module, 0, 1, torch.device("cpu"))

    def loss(output: Tensor, target: Tensor) -> Tensor:
        were.append(torch.is_autocast_enabled("cpu"))
        return nn.functional.mse_loss(output, target)

    def update() -> None:
        were.append(torch.is_autocast_enabled("cpu"))
        module.zero_grad()

    schedule = Schedule2BW(stage, 2, loss, update=update)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            schedule.step(x, target=x)
    assert were[-3:] == [True, True, False]


def test_gradients_that_were_zero() -> None:
    """They are before the first update of a stage whose successor begins with zeros."""
    module = nn.Linear(2, 2)
    module(torch.ones(2)).mul(0).sum().backward()
    for looks in (True, False):
        with Steps([*module.parameters()], looks=looks) as steps:
            SGD(module.parameters()).step()
        assert not steps.has_looked


# `Schedule2BW` leaves a trial's trace: its ranks make the passes of a trial's ranks, in order.

DRAINED_BEFORE = 5


def test_the_drawn_order_is_that_of_the_passes(tmp_path: Path) -> None:
    """What the module says of two ranks and three microbatches."""
    text = str(schedule_2bw.__doc__)
    drawn = [re.findall(r"[FB]\d\.\d|U\d", line) for line in text.splitlines() if "   rank" in line]
    on_ranks(2, [Case(3, trace_to=tmp_path)])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for rank, order in enumerate(drawn):
        spans = [e for e in events if e["ph"] == "X" and e["tid"] == 2 * rank]
        spans = sorted((e for e in spans if e["cat"] in "FBU"), key=lambda e: e["ts"])
        made = [
            f"{e['cat']}{e['args']['batch']}" + f".{e['args']['microbatch']}" * (e["cat"] != "U")
            for e in spans
        ]
        first = made.index(order[0])
        assert made[first : first + len(order)] == order
    assert len(drawn) == 2


def test_a_trace_has_the_passes_of_a_trial(tmp_path: Path) -> None:
    cases = []
    for slack in (False, True):
        (folder := tmp_path / str(slack)).mkdir()
        cases.append(Case(4, drains={DRAINED_BEFORE: "drain"}, slack=slack, trace_to=folder))
    for case, trained in zip(cases, on_ranks(2, cases), strict=True):
        assert not differences(trained, expected(case, 2))
        assert_traced(case)


def assert_traced(case: Case) -> None:
    assert case.trace_to is not None
    events = json.loads((case.trace_to / "trace.json").read_text())["traceEvents"]
    shape = {"num_stages": 2, "num_microbatches": 4, "slack": case.slack}
    schedule = pipedream_2bw(T, **shape, synchronous_start=0, synchronous_cooldown=0)
    runs = [schedule.operations(*run) for run in ((0, DRAINED_BEFORE), (DRAINED_BEFORE, T))]
    for rank in range(2):
        spans = [event for event in events if event["ph"] == "X" and event["tid"] == 2 * rank]
        passes = [
            (span["cat"], span["args"]["batch"], span["args"]["microbatch"])
            for span in spans
            if span["cat"] in "FB"
        ]
        planned = [(op.kind, op.batch, op.microbatch) for run in runs for op in run[rank]]
        assert passes == [op for op in planned if op[0] in "FB"]
        assert [span["args"]["batch"] for span in spans if span["cat"] == "U"] == [*range(T)]
        assert all(span["dur"] >= 0 for span in spans)
    assert "measured" in (case.trace_to / "timeline.svg").read_text()


# When the sums of tied weights begin, beside the simulation of a trial.

COSTS = {"F": 1.0, "B": 2.0, "U": 0.0}


@pytest.mark.parametrize("slack", [False, True])
@pytest.mark.parametrize("p", [2, 3, 4, 5, 6, 7, 8])
def test_the_last_stage_asks_for_a_tied_sum_once_it_can_be_there(p: int, slack: bool) -> None:
    """Before that it would wait, after it the norm would be late."""
    m = 2 * p if slack else p
    shape = {"num_stages": p, "num_microbatches": m, "slack": slack}
    schedule = pipedream_2bw(6, **shape, synchronous_start=0, synchronous_cooldown=0)
    spans = simulate(schedule.operations(0, 6), [COSTS] * p).spans
    for batch in (3, 4):
        [whole] = [
            end
            for op, _, end in spans[0]
            if (op.kind, op.batch, op.microbatch) == ("B", batch, m - 1)
        ]
        starts = [start for op, start, _ in spans[-1] if (op.kind, op.batch) == ("F", batch + 1)]
        assert next(i for i, start in enumerate(starts) if start >= whole) == way_back(p)


# What counts as an update of the user's, on sharded weights.


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_a_step_that_no_version_of_a_weight_shows(one_rank: None, how: str) -> None:
    mesh = init_device_mesh("cpu", (1,))
    newest, *twins = (fully_shard(nn.Linear(2, 2), mesh=mesh) for _ in range(3))
    stage = PipelineStage(newest, 0, 1, torch.device("cpu"))
    late = LateUpdate(stage, twins, [], correction_node(0, None), None)
    late.versions.start(0)
    twins[0](torch.ones(1, 2)).sum().backward()
    optimizer = torch.optim.AdamW(newest.parameters(), lr=0.1, **{how: True})
    versions = [weight._version for weight in newest.parameters()]
    late(0, torch.ones(()), optimizer.step)
    assert versions == [weight._version for weight in newest.parameters()]
    twins[1](torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="made no optimizer step"):
        late(1, torch.ones(()), lambda: None)


@pytest.mark.parametrize("evaluates", [False, True])
def test_an_evaluation_on_sharded_weights_changes_nothing(one_rank: None, evaluates: bool) -> None:
    """FSDP2 leaves a root's weights whole after a forward without a backward."""
    mesh, x = init_device_mesh("cpu", (1,)), torch.ones(1, 2)
    torch.manual_seed(0)
    plain = nn.Linear(2, 2)
    newest, *twins = (fully_shard(copy.deepcopy(plain), mesh=mesh) for _ in range(3))
    optimizer = torch.optim.SGD(newest.parameters(), lr=0.1)
    schedule = Schedule2BW(
        PipelineStage(newest, 0, 1, torch.device("cpu")),
        1,
        nn.MSELoss(),
        update=optimizer.step,
        error_feedback=1.0,
        twins=twins,
    )
    delayed = DelayedOptimizer(torch.optim.SGD(plain.parameters(), lr=0.1))
    for _ in range(4):
        if evaluates:
            with schedule.drained() as module, torch.no_grad():
                module(x)
        schedule.step(x, target=x)
        delayed.zero_grad()
        nn.functional.mse_loss(plain(x), x).backward()
        delayed.step()
    delayed.finish()
    with schedule.drained():
        pairs = zip(newest.parameters(), plain.parameters(), strict=True)
        assert all(torch.equal(mine.full_tensor(), right) for mine, right in pairs)
