"""Every name of torch that Schedule2BW rests on and that torch does not document, in one place."""

from inspect import signature

from torch.distributed.pipelining import Schedule1F1B

PRIVATE_NAMES = {
    "schedule": (
        *("_stage", "_n_microbatches", "_has_backward", "_check_inputs", "_initialize_stage"),
        *("_step_microbatches", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses"),
        *("_stage_forward_initialized", "_stage_backward_initialized"),
    ),
    "stage": (
        *("submod", "group", "group_size", "forward_one_chunk", "backward_one_chunk"),
        *("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"),
        *("perform_reduce_grad", "fwd_cache or _forward_chunk_states"),
    ),
    "module": ("_compiled_call_impl",),
    "weight": ("_post_accumulate_grad_hooks", "_version"),
    "composable_state": ("_module_state_mapping",),  # used in trainer/delayed/kept_weights.py
}
"""Of a Schedule1F1B, a PipelineStage, a Module, a Parameter and torch.distributed's
_composable_state, in torch 2.11 to 2.15. A test says which one moved."""

TAKES_TARGET = "target" in signature(Schedule1F1B._initialize_stage).parameters
"""Whether a stage is prepared with a target: not in torch 2.11."""
