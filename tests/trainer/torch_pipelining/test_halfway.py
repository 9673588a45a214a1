"""An exception out of `step` leaves a schedule that can go on, or that says that it cannot."""

import copy
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch.distributed.pipelining import PipelineStage

from pipegap.trainer.torch_pipelining import Schedule2BW
from pipegap.trainer.torch_pipelining.schedule import TAKES_TARGET
from tests.support.torch_naive import (
    BATCHES,
    MICROBATCHES,
    RATE,
    Block,
    assert_equal,
    batch,
    loss,
    naive,
    stages_of,
)

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


class Loop:
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
        x, y = batch(t)
        for _ in range(2):
            with suppress(Once, RuntimeError):
                self.schedule.step(x, target=y)
                return


def _in_forward(loop: Loop, number: int) -> None:
    hook = failing(lambda *_: None, number)
    loop.module.up.register_forward_pre_hook(hook)


def _in_loss(loop: Loop, number: int) -> None:
    loop.loss_of = failing(loss, number)


def _in_backward(loop: Loop, number: int) -> None:
    loop.module.down.register_full_backward_pre_hook(failing(lambda *_: None, number))


def _in_evaluation(loop: Loop, number: int) -> None:
    _in_loss(loop, number)
    with pytest.raises(Once), loop.schedule.drained():
        loop.schedule.eval(batch(0)[0], target=batch(0)[1])


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("fails", [_in_forward, _in_loss, _in_backward, _in_evaluation])
@pytest.mark.parametrize("before", [0, 2])
def test_a_batch_that_is_tried_again(
    fails: Callable[[Loop, int], None], number: int, before: int
) -> None:
    """Without other ranks nothing of it is left, in the middle or at its start."""
    loop, [right] = Loop(), stages_of(Block)
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
    loop, [right] = Loop(), stages_of(Block)
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
    loop = Loop()
    schedule, own = loop.schedule, [*loop.module.parameters()]
    schedule.update = failing(lambda: None, 1)
    x, y = batch(0)
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
    loop = Loop()
    sizes = iter(range(1, 1_000))
    loop.module.register_forward_hook(lambda module, args, output: output[:, : next(sizes)])
    loop.loss_of = lambda output, target: output.square().mean()
    x, y = batch(0)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        loop.schedule.step(x, target=y)
    with pytest.raises(RuntimeError, match="batch 0 stopped halfway"):
        loop.schedule.step(x, target=y)
