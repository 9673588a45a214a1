"""Every name of torch that this room uses and that torch does not document, in one place."""

PRIVATE_NAMES = {
    "schedule": (
        *("_stage", "_n_microbatches", "_has_backward", "_check_inputs", "_initialize_stage"),
        *("_step_microbatches", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses"),
    ),
    "stage": (
        *("submod", "group", "group_size", "fwd_cache", "forward_one_chunk", "backward_one_chunk"),
        *("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"),
        "perform_reduce_grad",
    ),
    "module": ("_compiled_call_impl",),
    "weight": ("_post_accumulate_grad_hooks", "_version"),
}
"""Of a Schedule1F1B, a PipelineStage, a Module and a Parameter. A test says which one moved."""
