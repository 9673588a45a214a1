"""What 2BW cannot do in Megatron, said in one line on every rank alike."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import megatron.core
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import clip_grads
from megatron.core.pipeline_parallel import schedules
from megatron.core.rerun_state_machine import RerunMode, get_rerun_state_machine
from megatron.core.utils import get_model_config, get_pg_size

from pipegap.trainer.base.errors import BadInput, some
from pipegap.trainer.megatron.optimizers import chain
from pipegap.trainer.torch_pipelining.passes import of_every_rank
from pipegap.trainer.torch_pipelining.refusals import require

OTHER_TIMES = "the stages would wait for each other where one of them ends a batch"
OPTIONS = {
    "virtual_pipeline_model_parallel_size": "2BW has no bubble that interleaving could fill",
    "fp8": "its cache of cast weights is overwritten under backwards in flight",
    "fp4": "its cache of cast weights is overwritten under backwards in flight",
    "fp8_param_gather": "its weights are no tensors that could be exchanged",
    "fp16": "its loss scale skips updates, and is another one a batch later: train in bf16",
    "loss_scale": "the norm, which comes a batch later, knows none: train in bf16 without it",
    "enable_cuda_graph": "passes read two sets of weights in turn",
    "external_cuda_graph": "passes read two sets of weights in turn",
    "cuda_graph_impl": "passes read two sets of weights in turn",
    "calculate_per_token_loss": OTHER_TIMES,
    "defer_embedding_wgrad_compute": "its activations are taken for those of one batch",
    "delay_wgrad_compute": "a batch's gradient would not be whole with its last backward",
    "variable_seq_lengths": "receives are posted before a length is known",
    "moe_router_enable_expert_bias": "its counts would mix the tokens of two batches",
    "mtp_num_layers": "its embedding has gradients on stages of other times",
    "has_cond_embedder": OTHER_TIMES,
    "hybrid_context_parallel": "its microbatches have other lengths",
    "num_microbatches_with_partial_activation_checkpoints": "2BW recomputes all batches alike",
    "fine_grained_activation_offloading": "its queues are of one batch",
    "cpu_offloading": "its queues are of one batch",
    "use_megatron_fsdp": "its weights are gathered by layer, so two sets would be two models",
    "use_custom_fsdp": "its weights are gathered by layer, so two sets would be two models",
    "nccl_ub": "the second set of weights is not registered with NCCL",
    "num_distributed_optimizer_instances": "it is not tested",
    "use_precision_aware_optimizer": "its masters lie in the inner optimizer",
    "optimizer_cpu_offload": "it has no single inner optimizer",
    "overlap_param_gather_with_optimizer_step": "weights are gathered before another set is read",
    "log_num_zeros_in_grad": OTHER_TIMES,
    "qk_clip": "it changes weights after the step",
}
"""Option of a config of Megatron's that must have its default → why."""
NAMES = {
    "schedules": (
        *("forward_step", "backward_step", "deallocate_output_tensor", "get_tensor_shapes"),
        "get_forward_backward_func",
    ),
    "clip_grads": ("clip_grad_by_total_norm_fp32",),
    "model": ("buffers", "bucket_groups", "expert_parallel_buffers", "pp_group", "ddp_config"),
    "buffer": ("param_data", "param_index_map", "buckets"),
    "group": (
        *("param_gather_dispatched", "param_gather_handle", "cached_param_buffer_shard_list"),
        "start_param_sync",
    ),
    "optimizer": (
        *("prepare_grads", "get_main_grads_for_grad_norm", "get_grad_stats_parallel_group"),
        *("step_with_ready_grads", "get_parameters", "init_state_fn", "zero_grad"),
    ),
}
"""What 2BW rests on of Megatron that Megatron does not document."""
TESTED = "0.16.1"
STEPPED = "FP32Optimizer", "Float16OptimizerWithFloat16Params", "DistributedOptimizer"


def require_usable(model: Any, optimizer: Any) -> None:
    """Raises BadInput, on all ranks alike, for the first thing that one of them cannot do."""
    refusal: tuple[Any, ...] = ()
    try:
        _require_usable(model, optimizer)
    except BadInput as error:
        refusal = error.args
    for arguments in of_every_rank(refusal):
        if arguments:
            raise BadInput(*arguments)


def _require_usable(model: Any, optimizer: Any) -> None:
    allowed = "must be one chunk: 2BW has no bubble that interleaving could fill"
    require(not isinstance(model, Sequence) or len(model) == 1, "model", "several chunks", allowed)
    [chunk] = model if isinstance(model, Sequence) else [model]
    is_ddp = type(chunk) is DistributedDataParallel
    require(is_ddp, "model", type(chunk).__name__, "must be wrapped in Megatron's own DDP")
    config = get_model_config(chunk)
    for options in (config, chunk.ddp_config, optimizer.config):
        for option in fields(options):
            value, reason = getattr(options, option.name), OPTIONS.get(option.name)
            is_off = reason is None or value in (option.default, None)
            require(is_off, option.name, value, f"must be {option.default}: {reason}")
    balancing = str(getattr(config, "moe_router_load_balancing_type", ""))
    is_global, name = "global_aux_loss" in balancing, "moe_router_load_balancing_type"
    require(
        not is_global,
        name,
        balancing,
        f"must be another: {OPTIONS['moe_router_enable_expert_bias']}",
    )
    mode = get_rerun_state_machine().get_mode()
    require(
        mode == RerunMode.DISABLED,
        "rerun_mode",
        mode.value,
        "must be disabled: it makes a batch twice",
    )
    positions = get_pg_size(parallel_state.get_position_embedding_group(check_initialized=False))
    require(
        positions <= 1,
        "position_embedding_group",
        positions,
        "must be of one stage: " + OTHER_TIMES,
    )
    for inner in chain(optimizer):
        allowed = f"must be one of {', '.join(STEPPED)}, or a ChainedOptimizer of them"
        require(type(inner).__name__ in STEPPED, "optimizer", type(inner).__name__, allowed)
        require(not getattr(inner, "grad_scaler", None), "loss_scale", "a scaler", "must be off")
    _require_names(chunk, optimizer)


def _require_names(chunk: Any, optimizer: Any) -> None:
    holders = {
        "schedules": [schedules],
        "clip_grads": [clip_grads],
        "model": [chunk],
        "buffer": chunk.buffers + chunk.expert_parallel_buffers,
        "group": chunk.bucket_groups + chunk.expert_parallel_bucket_groups,
        "optimizer": chain(optimizer),
    }
    moved = [
        f"{of}.{name}"
        for of in NAMES
        for name in NAMES[of]
        if not all(hasattr(x, name) for x in holders[of])
    ]
    allowed = f"must be {TESTED}: in yours {some(moved)} moved"
    require(not moved, "megatron-core", megatron.core.__version__, allowed)
