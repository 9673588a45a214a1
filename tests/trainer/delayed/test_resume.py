"""A loop resumes from its checkpoints to the bit; a state that does not fit is refused."""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.delayed import ADAMW, T
from tests.support.own_loop import Loop
from trainer.base.errors import BadInput
from trainer.corrections.weight_prediction import WeightPrediction
from trainer.delayed import DelayedOptimizer


@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize(("keep", "delay"), [("weights", 1), ("weights", 3), ("gradients", 2)])
def test_resumes_to_the_bit(keep: str, delay: int, at: int, tmp_path: Path) -> None:
    options = {"keep": keep, "delay": delay, "num_updates": T}
    whole = Loop(ADAMW, **options)
    losses = whole.run(range(T), clip_norm=0.5)
    first = Loop(ADAMW, **options)
    assert first.run(range(at), clip_norm=0.5) == losses[:at]
    first.delayed.eval()  # a checkpoint that is saved after an evaluation
    saved = {"model": first.module, "optimizer": first.delayed, "lr": first.scheduler}
    torch.save({k: v.state_dict() for k, v in saved.items()}, tmp_path / "checkpoint.pt")
    first.delayed.train()
    assert first.run(range(at, T), clip_norm=0.5) == losses[at:], "saving changes nothing"
    second = Loop(ADAMW, **options)
    state = torch.load(tmp_path / "checkpoint.pt")
    second.module.load_state_dict(state["model"])
    second.delayed.load_state_dict(state["optimizer"])
    second.scheduler.load_state_dict(state["lr"])
    assert second.run(range(at, T), clip_norm=0.5) == losses[at:]
    assert all(map(torch.equal, second.weights(), whole.weights()))
    assert second.delayed.largest_delay == delay


def test_weight_prediction_resumes_too() -> None:
    options = {"correction": partial(WeightPrediction, horizon=1.0), "num_updates": T}
    whole, first, second = (Loop(ADAMW, **options) for _ in range(3))
    losses = whole.run(range(T))
    first.run(range(5))
    second.delayed.load_state_dict(copy.deepcopy(first.delayed.state_dict()))
    second.scheduler.load_state_dict(first.scheduler.state_dict())
    assert second.run(range(5, T)) == losses[5:]


def test_the_delay_begins_where_a_bare_optimizer_ended() -> None:
    """Either wrapped when it has a state, or given that state."""
    bare = Loop(ADAMW, delay=0)
    bare.run(range(4))
    inner, state = bare.delayed.optimizer, copy.deepcopy(bare.delayed.optimizer.state_dict())
    begun = Loop(ADAMW, synchronous_start=4)
    losses = begun.run(range(T))
    given = Loop(ADAMW)
    given.module.load_state_dict(bare.module.state_dict())
    given.delayed.load_state_dict(state)
    given.scheduler.load_state_dict(bare.scheduler.state_dict())
    wrapped = Loop(ADAMW)
    wrapped.module, wrapped.delayed = bare.module, DelayedOptimizer(inner)
    wrapped.scheduler = bare.scheduler
    assert given.run(range(4, 6)) == wrapped.run(range(4, 6)) == losses[4:6]


@pytest.mark.parametrize("shown", [True, False])
def test_weights_loaded_after_the_optimizer_must_be_those_to_read(shown: bool) -> None:
    """As torch.distributed.checkpoint does. Those to evaluate would be read as the old ones."""
    first, second = Loop(ADAMW), Loop(ADAMW)
    first.run(range(3))
    second.delayed.load_state_dict(first.delayed.state_dict())
    if shown:
        first.delayed.eval()
    second.module.load_state_dict(first.module.state_dict())
    if shown:
        with pytest.raises(RuntimeError, match="optimizer state after its weights"):
            second.delayed.step()
    else:
        second.scheduler.load_state_dict(first.scheduler.state_dict())
        assert second.run(range(3, 6)) == first.run(range(3, 6))


def test_the_state_of_another_delay_is_refused() -> None:
    loop = Loop(ADAMW, delay=2)
    loop.run(range(2))
    with pytest.raises(BadInput, match="delay=1: must be 2, with which the state was saved"):
        Loop(ADAMW).delayed.load_state_dict(loop.delayed.state_dict())
    with pytest.raises(ValueError, match="groups of"):
        DelayedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(2))])).load_state_dict(
            loop.delayed.state_dict()
        )


@pytest.mark.parametrize("lost", ["delay_update_1", "exp_avg"])
def test_a_state_that_lost_something_is_refused(lost: str) -> None:
    """torch.distributed.checkpoint leaves out what the optimizer does not have yet."""
    loop = Loop(ADAMW)
    loop.run(range(3))
    state = copy.deepcopy(loop.delayed.state_dict())
    for tensors in state["state"].values():
        del tensors[lost]
    with pytest.raises(ValueError, match=f"lacks {lost}, which was saved"):
        Loop(ADAMW).delayed.load_state_dict(state)


def test_a_state_whose_groups_lost_the_delay_is_refused() -> None:
    """Else it would be taken for a bare optimizer's, and the delay would begin anew in silence."""
    loop = Loop(ADAMW)
    loop.run(range(3))
    state = copy.deepcopy(loop.delayed.state_dict())
    for group in state["param_groups"]:
        del group["delayed"]
    with pytest.raises(ValueError, match="the state lost what its groups have as 'delayed'"):
        Loop(ADAMW).delayed.load_state_dict(state)
