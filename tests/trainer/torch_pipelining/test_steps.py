"""An `update` steps the stage's weights by their gradients, or is refused."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.optim import SGD, Optimizer

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.torch_pipelining import Schedule2BW
from pipegap.trainer.torch_pipelining.late_update import Steps

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
