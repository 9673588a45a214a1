"""What cannot be used is refused in one line, before anything trains."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.jit import ScriptModule

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.torch_pipelining import Schedule2BW, refusals
from tests.support import every_correction

STAGE = SimpleNamespace(group_size=2, num_stages=2)
LOSS = nn.MSELoss()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((STAGE, 1, LOSS, 1), "n_microbatches=1: must be at least 2"),
        ((STAGE, 2, LOSS, 2), "n_microbatches=2: must be at least 3"),
        ((STAGE, 4, None, 1), "loss_fn=None: is required"),
        (([STAGE, STAGE], 4, LOSS, 1), "must be the only stage of its rank"),
        ((SimpleNamespace(group_size=2, num_stages=4), 4, LOSS, 1), "the only stage of its rank"),
    ],
)
def test_a_schedule_that_is_none(given: tuple[Any, ...], says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        refusals.require_usable(*given)
    assert "\n" not in str(caught.value)


def test_a_wrapped_module_needs_twins() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    refusals.require_plain(module)
    module[0].compile()
    for wrapped in (module, torch.compile(nn.Linear(2, 2))):
        with pytest.raises(BadInput, match="twins=None: is required"):
            refusals.require_plain(wrapped)
    with pytest.raises(BadInput, match="must not be of TorchScript"):
        refusals.require_plain(ScriptModule())
    for twins in ([nn.Linear(2, 2)], [nn.Linear(2, 2), nn.Linear(2, 3)]):
        with pytest.raises(BadInput, match="must be two modules"):
            refusals.require_twins(nn.Linear(2, 2), twins)


def test_an_update_that_is_made_elsewhere() -> None:
    module = nn.Linear(2, 2)
    weights = list(module.parameters())
    refusals.require_trainable(print, weights)
    with pytest.raises(BadInput, match="update=None: is required"):
        refusals.require_trainable(None, weights)
    weights[0].register_post_accumulate_grad_hook(print)
    with pytest.raises(BadInput, match="OptimizersInBackward"):
        refusals.require_trainable(print, weights)


def test_a_captured_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="no CUDA graphs"):
        refusals.require_eager(torch.device("cuda"))


def stage_of(module: nn.Module) -> PipelineStage:
    return PipelineStage(module, 0, 1, torch.device("cpu"))


@pytest.mark.usefixtures("one_rank")
def test_what_a_schedule_refuses(tmp_path: Path) -> None:
    stage, x = stage_of(nn.Linear(2, 2)), torch.ones(1, 2)
    with pytest.raises(BadInput, match=r"tied=\['wieght'\]: must name weights of equal shapes"):
        Schedule2BW(stage, 1, LOSS, tied=["wieght"])
    ahead = every_correction.located(every_correction.settings("ema_nesterov"))
    with pytest.raises(BadInput, match="correction=EmaNesterov: must not look ahead"):
        Schedule2BW(stage, 1, LOSS, correction=ahead, num_updates=9)
    schedule = Schedule2BW(stage, 1, LOSS, update=print)
    with pytest.raises(BadInput, match="trace=False: must be True"):
        schedule.write_trace(tmp_path)
    schedule.step(x, target=x)
    with pytest.raises(RuntimeError, match="belongs into update"):
        schedule.clip_grad_norm_(1.0)
    with pytest.raises(RuntimeError, match="inside `with"):
        schedule.eval(x, target=x)


def _finalizing(self: Any, x: Any, *, target: Any, finalize_gradients: bool = True) -> None:
    """A `step` of a torch to come: it hands an option on, at its default too."""
    self._stage.has_backward = True
    mbs = [(x,)], [{}], [target]
    self._step_microbatches(*mbs, finalize_gradients=finalize_gradients)


@pytest.mark.usefixtures("one_rank")
def test_options_of_a_torch_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their defaults ask for nothing and are taken; other values are refused by their name."""
    made, x = Schedule1F1B.__init__, torch.ones(1, 2)

    def numbering(self: Any, *given: Any, pass_indices: bool = False, **rest: Any) -> None:
        made(self, *given, **rest)

    monkeypatch.setattr(Schedule1F1B, "__init__", numbering)
    monkeypatch.setattr(Schedule1F1B, "step", _finalizing)
    module = nn.Linear(2, 2)
    stage, update = stage_of(module), torch.optim.SGD(module.parameters()).step
    for name in ("pass_indices", "no_such_option"):
        with pytest.raises((BadInput, TypeError), match=name) as caught:
            Schedule2BW(stage, 1, LOSS, update=update, **{name: True})
        assert "\n" not in str(caught.value)
    schedule = Schedule2BW(stage, 1, LOSS, update=update, pass_indices=False, scale_grads=True)
    with pytest.raises(BadInput, match="finalize_gradients=False: is an option of torch's"):
        schedule.step(x, target=x, finalize_gradients=False)
    schedule.step(x, target=x)
    schedule.step(x, target=x, finalize_gradients=True)
    assert schedule.num_taken == 2


@pytest.mark.usefixtures("one_rank")
def test_a_disabled_grad_scaler_is_none() -> None:
    """Loops for several dtypes have such a one; test_alike.py has one that scales."""
    module, scaler, x = (
        nn.Linear(2, 2),
        torch.amp.GradScaler("cpu", enabled=False),
        torch.ones(1, 2),
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    schedule = Schedule2BW(
        stage_of(module),
        1,
        lambda *given: scaler.scale(LOSS(*given)),
        update=lambda: scaler.step(optimizer),
    )
    schedule.step(x, target=x)
    with schedule.drained():
        assert schedule.num_made == 1
    assert torch.amp.GradScaler("cpu").scale(torch.ones(())) == 2**16, "nothing of torch's is left"
