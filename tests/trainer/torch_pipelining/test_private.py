"""What Schedule2BW rests on of torch that torch does not document is still there."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _composable_state
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

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
        *(
            "perform_reduce_grad",
            "args_recv_info",
            "grad_recv_info",
            "fwd_cache or _forward_chunk_states",
        ),
    ),
    "module": (
        *("_compiled_call_impl", "_parameters", "_buffers", "_modules", "_forward_hooks"),
        *("_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    ),
    "weight": ("_post_accumulate_grad_hooks", "_version", "_backward_hooks", "_make_subclass"),
    "group": ("_get_backend",),
    "backend": ("options",),
    "options": ("_timeout",),
    "composable_state": ("_module_state_mapping",),  # used in trainer/base/flat.py
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
