"""What Schedule2BW rests on of torch that torch does not document is still there."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _composable_state
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.executors.gradients import Diverged
from pipegap.trainer.torch_pipelining import Schedule2BW

CPU = torch.device("cpu")
PRIVATE_NAMES = {
    "schedule": (
        *("_stage", "_n_microbatches", "_has_backward", "_check_inputs", "_initialize_stage"),
        *("_step_microbatches", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses"),
        *("_stage_forward_initialized", "_stage_backward_initialized", "_internal_losses"),
    ),
    "stage": (
        *("submod", "group", "group_size", "forward_one_chunk", "backward_one_chunk"),
        *("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"),
        *("perform_reduce_grad", "fwd_cache or _forward_chunk_states"),
    ),
    "module": (
        *("_compiled_call_impl", "_parameters", "_buffers", "_modules", "_forward_hooks"),
        *("_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    ),
    "weight": ("_post_accumulate_grad_hooks", "_version", "_backward_hooks", "_make_subclass"),
    "group": ("_get_backend",),
    "backend": ("options",),
    "options": ("_timeout",),
    "composable_state": ("_module_state_mapping",),  # used in trainer/delayed/copies.py
}
"""Of a Schedule1F1B, a PipelineStage, a Module, a Parameter, a group and torch.distributed's
_composable_state, in torch 2.11 to 2.15. A test says which one moved."""


@pytest.mark.usefixtures("one_rank")
def test_no_private_name_of_torch_moved() -> None:
    module = nn.Linear(2, 2)
    stage, group = PipelineStage(module, 0, 1, CPU), dist.group.WORLD
    objects = {
        "schedule": Schedule1F1B(stage, 1, nn.MSELoss()),
        "stage": stage,
        "module": module,
        "weight": module.weight,
        "group": group,
        "backend": group._get_backend(CPU),
        "options": group._get_backend(CPU).options,
        "composable_state": _composable_state,
    }
    moved = [
        f"{of}.{name} of torch {torch.__version__}"
        for of, names in PRIVATE_NAMES.items()
        for name in names
        if not any(hasattr(objects[of], either) for either in name.split(" or "))
    ]
    assert not moved


@pytest.mark.usefixtures("one_rank")
def test_a_tied_weight_that_is_not_there() -> None:
    stage = PipelineStage(nn.Linear(2, 2), 0, 1, CPU)
    with pytest.raises(BadInput, match=r"tied=\['wieght'\]: must name weights of equal shapes"):
        Schedule2BW(stage, 1, nn.MSELoss(), tied=["wieght"])


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("enabled", [False, True])
def test_a_grad_scaler_is_refused_before_an_update(enabled: bool) -> None:
    """Disabled it does nothing, and loops for several dtypes have such a one."""
    module, scaler = nn.Linear(2, 2), torch.amp.GradScaler("cpu", enabled=enabled)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    schedule = Schedule2BW(
        PipelineStage(module, 0, 1, CPU),
        1,
        lambda *given: scaler.scale(nn.functional.mse_loss(*given)),
        update=lambda: scaler.step(optimizer),
    )
    says = r"loss_fn=GradScaler\.scale: must not scale.*use bf16"
    schedule.step(torch.ones(1, 2), target=torch.ones(1, 2))
    with pytest.raises(BadInput, match=says) if enabled else nullcontext(), schedule.drained():
        pass
    assert schedule.num_made == (0 if enabled else 1)
    assert torch.amp.GradScaler("cpu").scale(torch.ones(())) == 2**16


@pytest.mark.usefixtures("one_rank")
def test_an_update_that_is_not_finite_is_not_made() -> None:
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def update() -> None:
        schedule.clip_grad_norm_(1.0)
        optimizer.step()

    schedule = Schedule2BW(
        PipelineStage(module, 0, 1, CPU), 1, nn.MSELoss(), update=update, error_feedback=1.0
    )
    schedule.step(torch.ones(1, 2), target=torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="belongs into update"):
        schedule.clip_grad_norm_(1.0)
    with pytest.raises(RuntimeError, match="inside `with"):
        schedule.eval(torch.ones(1, 2), target=torch.ones(1, 2))
    schedule.step(torch.full((1, 2), float("inf")), target=torch.ones(1, 2))
    weights = [weight.detach().clone() for weight in module.parameters()]
    with pytest.raises(Diverged, match="batch 1"), schedule.drained():
        pass
    assert all(map(torch.equal, module.parameters(), weights))
