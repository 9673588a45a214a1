"""`Megatron2BW`: PipeDream-2BW without a flush, for Megatron Core; and `install`, for the training
loops of Megatron-LM and Megatron-Bridge: see docs/megatron.md.

The order of passes, the messages and the trace are those of `Schedule2BW` (its module draws them in
time). What differs: gradients lie in the one buffer of Megatron's DDP. Backwards of a rank are in
order, so when the last one of a batch is made, Megatron sums the gradient over replicas, and it is
taken out of the buffer before the next backward, which is one of the next batch. Then `step` clips
it, when all stages have theirs, and Megatron's own optimizer makes the update.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial, wraps
from inspect import signature
from itertools import product
from math import isfinite
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import Any

import megatron.core
import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import clip_grads
from megatron.core.pipeline_parallel import schedules
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.rerun_state_machine import RerunMode, get_rerun_state_machine
from megatron.core.utils import get_attr_wrapped_model, get_model_type
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.delayed.arm import MakeCorrection, correction_node, require_options
from pipegap.trainer.executors.executor import Diverged
from pipegap.trainer.megatron.optimizers import CorrectedSteps, inner_of
from pipegap.trainer.megatron.stage import MegatronStage, TwoSets, WaitingGradient
from pipegap.trainer.torch_pipelining import passes
from pipegap.trainer.torch_pipelining.late_update import way_back
from pipegap.trainer.torch_pipelining.passes import BACKWARD, FORWARD
from pipegap.trainer.torch_pipelining.refusals import require

TWO_SETS = "passes read two sets of weights in turn"
TWO_BATCHES = "microbatches of two batches are in flight"
OTHER_TIMES = "the stages would wait for each other where one of them ends a batch"
LATE_UPDATE = "the update comes a batch later, by an inner optimizer that has the fp32 weights"
REFUSED = {
    TWO_SETS: "fp8 fp4 fp8_param_gather enable_cuda_graph external_cuda_graph cuda_graph_impl "
    "use_megatron_fsdp use_custom_fsdp nccl_ub overlap_param_gather_with_optimizer_step qk_clip",
    TWO_BATCHES: "virtual_pipeline_model_parallel_size defer_embedding_wgrad_compute "
    "delay_wgrad_compute variable_seq_lengths hybrid_context_parallel cpu_offloading "
    "num_microbatches_with_partial_activation_checkpoints fine_grained_activation_offloading "
    "moe_router_enable_expert_bias",
    OTHER_TIMES: "calculate_per_token_loss has_cond_embedder log_num_zeros_in_grad mtp_num_layers",
    LATE_UPDATE: "fp16 loss_scale use_precision_aware_optimizer optimizer_cpu_offload "
    "num_distributed_optimizer_instances",
}
"""Why → the options of Megatron's configs that must have their defaults."""
TESTED = "0.16.1"
STEPPED = "FP32Optimizer", "Float16OptimizerWithFloat16Params", "DistributedOptimizer"


@contextmanager
def refused_alike() -> Iterator[None]:
    """A context whose refusal on any rank is raised on all of them, as BadInput. A name of
    Megatron's that is not there is one: 2BW rests on some that Megatron does not document."""
    refusal: BadInput | None = None
    try:
        yield
    except BadInput as error:
        refusal = error
    except AttributeError as error:
        holder = getattr(error.obj, "__name__", type(error.obj).__name__)
        allowed = f"must be {TESTED}: in yours {holder}.{error.name} moved"
        refusal = BadInput("megatron-core", megatron.core.__version__, allowed)
    for refusal_there in filter(None, passes.of_every_rank(refusal)):
        raise refusal_there


def require_usable(chunk: Any, optimizer: Any) -> None:
    """Raises BadInput or AttributeError for the first thing that this rank cannot do."""
    is_ddp, kind = type(chunk) is DistributedDataParallel, type(chunk).__name__
    require(is_ddp, "model", kind, f"must be one chunk, in Megatron's own DDP: {TWO_BATCHES}")
    configs, inners = (chunk.config, chunk.ddp_config, optimizer.config), inner_of(optimizer)
    groups = chunk.bucket_groups + chunk.expert_parallel_bucket_groups
    for (reason, options), config in product(REFUSED.items(), configs):
        for option in fields(config):
            value = getattr(config, option.name)
            is_off = option.name not in options.split() or value in (option.default, None)
            require(is_off, option.name, value, f"must be {option.default}: {reason}")
    balancing = str(getattr(chunk.config, "moe_router_load_balancing_type", ""))
    is_local, allowed = "global_aux_loss" not in balancing, f"must be another: {TWO_BATCHES}"
    require(is_local, "moe_router_load_balancing_type", balancing, allowed)
    mode, allowed = get_rerun_state_machine().get_mode(), "must be disabled: it makes a batch twice"
    require(mode == RerunMode.DISABLED, "rerun_mode", mode.value, allowed)
    for kind in (type(inner).__name__ for inner in inners):
        allowed = f"must be one of {', '.join(STEPPED)}, or a ChainedOptimizer of them"
        require(kind in STEPPED, "optimizer", kind, allowed)
    used_later = {  # than the construction, which finds other names
        "forward_step backward_step deallocate_output_tensor get_tensor_shapes": [schedules],
        "clip_grad_by_total_norm_fp32": [clip_grads],
        "prepare_grads get_main_grads_for_grad_norm step_with_ready_grads": inners,
        "get_grad_stats_parallel_group": inners,
        "param_gather_dispatched param_gather_handle start_param_sync": groups,
        "cached_param_buffer_shard_list": groups,
    }
    for names, holders in used_later.items():
        for holder in holders:
            attrgetter(*names.split())(holder)


STATE = "schedule_2bw"
"""The entry of the optimizer's state."""


class Megatron2BW(passes.WithoutFlush):
    """Trains as Megatron's 1F1B does, but without its bubble: gradients are one update old.

    W(t+1) = W(t) − u_t − λ (u_t − u_{t−1}), where u_t is the whole change that `optimizer` makes of
    W(t), from the gradient of batch t at W(max(0, t − 1)), and λ is `error_feedback`, the paper's 1
    by default: the update of a trial with `pipeline=pipedream_2bw` (docs/semantics.md).

    `model` is the one chunk of this rank's stage in Megatron's DDP, or a list of it, and
    `optimizer` what get_megatron_optimizer made of it. Call `forward_backward` in place of what
    get_forward_backward_func returned, and `step` in place of `optimizer.step`. Evaluate and save
    in `with drained():`. From now on `optimizer.sharded_state_dict` has the state of the schedule
    too, and `zero_grad_buffer` of the model does nothing: half of a gradient may be in the buffer.

    - `correction`, a class of `trainer.corrections` (or `functools.partial` of one and its options)
      with `num_updates`: in place of Error Feedback. It computes on fp32 weights as they are
      sharded. One that computes a number from a whole weight, as AdaptiveErrorFeedback does, is
      refused where ranks have shards: by `use_distributed_optimizer` and tensor parallelism.
    - `synchronous_start`: how many updates are made without a delay, at first.
    - `trace`: whether every pass is timed, for `write_trace`.

    All ranks construct it together. Raises BadInput, a ValueError, on every rank alike and in one
    line that names the argument, for what cannot be used.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        error_feedback: float = 1.0,
        *,
        correction: MakeCorrection | None = None,
        num_updates: int | None = None,
        synchronous_start: int = 0,
        trace: bool = False,
    ) -> None:
        require_options("weights", None, correction, num_updates)
        node = correction_node(error_feedback, correction)
        self.optimizer, self._synchronous_start, self._trace = optimizer, synchronous_start, trace
        is_late = lambda: self.num_made - self._weights.version(self.num_made)  # noqa: E731
        with refused_alike():
            is_list = isinstance(model, Sequence) and len(model) == 1
            self.newest = model[0] if is_list else model
            require_usable(self.newest, optimizer)
            inners = inner_of(optimizer)
            self._steps = [CorrectedSteps(inner, node, num_updates, is_late) for inner in inners]
            self._weights: Any = TwoSets(self.newest, self._steps, synchronous_start)
            self._stage: Any = MegatronStage(self.newest)
        self.config = self.newest.config
        self._sizes: dict[str, Any] = {}  # of the first batch
        self._in_flight: deque[tuple[Tensor | None, Tensor]] = deque()
        # Of each batch whose gradient is whole, a gradient per inner optimizer.
        self._whole: deque[list[WaitingGradient]] = deque()
        self._begun = -1  # the last batch whose norm
        self._norm: float | None = None  # of the last update
        self._is_reported = True  # whether `step` returned True for it
        # Megatron's `finalize_model_grads` must not sum the copies of a tied weight, where the last
        # stage would wait for the first one's gradient. Stages in between have none.
        module = get_attr_wrapped_model(self.newest, "pre_process", return_model_obj=True)
        num_stages = self._stage.num_stages if module.share_embeddings_and_output_weights else 1
        self._norm_at = max(self._stage.lead, way_back(num_stages))
        self._groups = ProcessGroupCollection.use_mpu_process_groups()
        tied = module.shared_embedding_or_output_weight() if num_stages > 1 else None
        self._tied, self._groups.embd = (tied, self._groups.embd), SimpleNamespace(size=lambda: 1)
        self._extend_checkpoints()
        # A timer would wait for all ranks where one of them ends a batch, and so for ever.
        self.config.barrier_with_L1_time = optimizer.config.barrier_with_L1_time = False
        self._zero_buffer, self.newest.zero_grad_buffer = self.newest.zero_grad_buffer, lambda: None

    def forward_backward(
        self, *, num_microbatches: int, forward_only: bool = False, **options: Any
    ) -> list[Any]:
        """Trains on a batch, or evaluates one, and returns what its losses return for the log.

        It takes the arguments of Megatron's function. `forward_only`, in `drained()`, is Megatron's
        own. After an exception that other ranks may not have met, each later call raises
        RuntimeError; after a refusal, a BadInput, nothing has happened.
        """
        self._require_whole()
        options.pop("model", None)
        every = {"model": self.newest, "num_microbatches": num_microbatches}
        if forward_only:
            self._require_drained()
            run = schedules.get_forward_backward_func()
            return run(**every, forward_only=True, **options)
        every |= {name: options.pop(name) for name in ("forward_step_func", "data_iterator")}
        self._begin(num_microbatches, options)
        batch, start = self.num_taken, self._synchronous_start
        logged: list[Any] = []
        every |= {"forward_data_store": logged, "config": self.config}
        every |= {"cp_group_size": self._groups.cp.size(), "is_last_stage": self._stage.is_last}

        def forward(batch: int, i: int) -> None:
            if i == self._norm_at and self.num_made < batch:
                self._begin_norm()
            received = self._stage.take(FORWARD)
            order = {"current_microbatch": i, "is_first_microbatch": i == 0}
            output, _ = schedules.forward_step(**every, **order, input_tensor=received)
            self._send(FORWARD, i, output)
            schedules.deallocate_output_tensor(output, self.config.deallocate_pipeline_outputs)
            self._in_flight.append((received, output))

        with self._noted():
            if self._weights.reads_ahead and batch <= start:
                self._show(newest=True)
            if self._weights.reads_ahead and batch == start:
                self._weights.copy_newest()
            if self._weights.reads_ahead and batch >= start:
                self._show(newest=False)
            self.num_taken += 1
            self._passes.run(self._drains[-1], self.num_taken, self._backward, forward)
            if batch < start:
                self._finish_batches()
            else:
                self._post_next()
        return logged

    @override
    def _require_whole(self) -> None:
        super()._require_whole()
        if self._has_update():
            raise RuntimeError("call step() after each forward_backward(): an update is left")

    def _begin(self, num: int, options: dict[str, Any]) -> None:
        """Refuses what cannot be, and makes passes and messages with the first batch."""
        collection, stage = options.pop("pg_collection", None), self._stage
        allowed = "must have the groups with which the model was made"
        is_same = collection is None or collection.pp is stage.group
        require(is_same, "pg_collection", collection, allowed)
        options.pop("p2p_communicator", None)  # messages are sent in groups of their own
        names = "seq_length", "micro_batch_size", "decoder_seq_length"
        shape = {name: options.pop(name, None) for name in names}
        for name, value in options.items():
            allowed = "is an option of Megatron's that 2BW does not have"
            require(value in (None, False), name, value, allowed)
        sizes = {"num_microbatches": num, **shape}
        for name, first in self._sizes.items():
            require(sizes[name] == first, name, sizes[name], f"must stay {first}: {TWO_BATCHES}")
        if self._sizes:
            return
        finalize, allowed = self.config.finalize_model_grads_func, "is required: it sums gradients"
        require(finalize is not None, "finalize_model_grads_func", None, allowed)
        allowed = f"must be at least {stage.num_stages - 1}, one for each later stage"
        require(num >= stage.num_stages - 1, "num_microbatches", num, allowed)
        groups = {"tp_group": self._groups.tp, "cp_group": self._groups.cp}
        [shape] = schedules.get_tensor_shapes(**shape, config=self.config, **groups)
        stage.allocate(shape, self.config.pipeline_dtype)
        self._passes = passes.Passes(stage, num, stage.lead, self._weights, self._trace)
        self._sizes = sizes

    def _show(self, *, newest: bool) -> None:
        self._weights.gather()
        for steps in self._steps:
            steps.show(newest=newest)

    def _backward(self, batch: int, i: int) -> None:
        is_last = i == self._passes.num_microbatches - 1
        tensors = *self._in_flight.popleft(), self._stage.take(BACKWARD)
        with nullcontext() if is_last else (self.config.no_sync_func or nullcontext)():
            gradient = schedules.backward_step(*tensors, get_model_type(self.newest), self.config)
        self._send(BACKWARD, i, gradient)
        if is_last:
            self._complete()

    def _send(self, kind: str, i: int, tensor: Tensor) -> None:
        self._stage.leaving = tensor
        self._passes.neighbours.send(kind, i)
        self._stage.leaving = None

    def _post_next(self) -> None:
        """Posts the receive of the first backward of the next call, whose message is on its way: so
        no rank's message waits for a call that may come after a wait for all ranks."""
        first, m = self._drains[-1], self._passes.num_microbatches
        number = (self.num_taken - first) * m - self._stage.lead
        if self._in_flight and not self._stage.is_last:
            self._passes.post([(BACKWARD, first + number // m, number % m)])

    def _complete(self) -> None:
        """A batch has its gradient: sums it over replicas, and takes it out of the buffer."""
        self._weights.release()
        with self._weights.without_gathers():
            self.config.finalize_model_grads_func([self.newest], None, self._groups)
        self.optimizer.prepare_grads()
        self._whole.append([WaitingGradient(steps, *self._tied) for steps in self._steps])
        self.optimizer.zero_grad()
        self._zero_buffer()

    def _begin_norm(self) -> None:
        """Starts to add up the norm of the oldest gradient, once, when the weights are its W(t)."""
        if self._begun < self.num_made:
            self._begun = self.num_made
            for gradient in self._whole[0]:
                gradient.begin_norm()

    def step(self) -> tuple[bool, float | None, None]:
        """Makes the update of the batch before, and returns what Megatron's `optimizer.step` does:
        whether there was an update, the norm of its gradient over all stages, and None.

        False at the first call, so Megatron leaves its scheduler alone. An update that `drained`
        made counts at the next call: the scheduler steps once per update, before the next one.

        Raises Diverged, on every rank alike, if the gradient is not finite; its update is not made.
        """
        super()._require_whole()
        if self._has_update():
            with self._noted():
                self._make_update()
        was_reported, self._is_reported = self._is_reported, True
        return (False, None, None) if was_reported else (True, self._norm, None)

    def _has_update(self) -> bool:
        """Whether `step` has an update to make."""
        is_synchronous = self.num_made < self.num_taken <= self._synchronous_start
        return self.num_made < self.num_taken - 1 or is_synchronous

    @torch.no_grad()
    def _make_update(self) -> None:
        batch, timed = self.num_made, self._passes.timed
        self._begin_norm()
        gradients = self._whole.popleft()
        self._norm = timed("wait U", batch, 0, lambda: sum(g.square() for g in gradients) ** 0.5)
        if not isfinite(self._norm):
            raise Diverged(batch)
        timed("U", batch, 0, self._update, gradients)
        self.num_made += 1
        self._is_reported = False

    def _update(self, gradients: Sequence[WaitingGradient]) -> None:
        for gradient in gradients:
            gradient.give_back(self._norm)
        self._weights.gather()  # two updates in a row, before a drain
        with self._weights.update(self.num_made + 1):
            self.optimizer.step_with_ready_grads()
        self.optimizer.zero_grad()

    @override
    def _drain(self) -> None:
        if self.num_made < self.num_taken:
            with self._passes.between_drains():
                self._finish_batches()
                self._make_update()
        self._show(newest=True)

    def _finish_batches(self) -> None:
        with torch.enable_grad():
            self._passes.run(self._drains[-1], self.num_taken, self._backward)
        self._passes.neighbours.flush()
        self._drains += (self.num_taken,)

    def _extend_checkpoints(self) -> None:
        """Adds what the next batches need to the optimizer's sharded state: the number of updates,
        and the weights that the next batch reads, sharded as Megatron shards those of the model."""
        sharded, load = self.optimizer.sharded_state_dict, self.optimizer.load_state_dict

        def sharded_state_dict(*args: Any, **options: Any) -> dict[str, Any]:
            self._require_drained()
            late = self._weights.older().module.sharded_state_dict(prefix="late.")
            for value in late.values():  # of a parameter, which is about to show other weights
                if isinstance(getattr(value, "data", None), Tensor):
                    value.data = value.data.detach()
            self._weights.release()
            state = {"late": late, "num_updates": self.num_made, "is_reported": self._is_reported}
            return {**sharded(*args, **options), STATE: state}

        def load_state_dict(state_dict: dict[str, Any]) -> None:
            if self.num_taken:
                raise RuntimeError("load a checkpoint before the first batch")
            state = state_dict.pop(STATE, None)
            allowed = "is not of 2BW: make Megatron2BW after it is loaded"
            require(state is not None, "checkpoint", [*state_dict], allowed)
            load(state_dict)
            self.num_taken = self.num_made = num = state["num_updates"]
            self._is_reported, self._drains = state["is_reported"], (num,)
            self._weights.gather()
            self._weights.first = num % 2
            # Megatron loaded them into the tensors that it found, which may be of either set.
            late = {name.removeprefix("late."): value for name, value in state["late"].items()}
            self._weights.older().module.load_state_dict(late)
            self._weights.release()

        self.optimizer.sharded_state_dict = sharded_state_dict
        self.optimizer.load_state_dict = load_state_dict


def install(*modules: ModuleType, **options: Any) -> None:
    """Lets these modules, `megatron.training.training` of Megatron-LM, train by 2BW.

    Call it before `pretrain`. In Megatron-Bridge the modules are `train`, `optim`, `eval` and
    `pretrain` of `megatron.bridge.training`. `options` are those of `Megatron2BW`.

    Names of theirs are replaced: the optimizer comes with the schedule and steps by it, forwards
    and backwards are those of the schedule, evaluations and checkpoints begin drained, and `train`
    ends so. Sums over all stages that each iteration waits for are left out, which would bring the
    bubble back: success, norm and learning rate are one number on every stage.
    """
    pipelines: list[Megatron2BW] = []  # none before the loop makes its optimizer

    def get_megatron_optimizer(make: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = make(*args, **kwargs)
        model = signature(make).bind(*args, **kwargs).arguments["model_chunks"]
        pipelines[:] = [Megatron2BW(model, optimizer, **options)]
        optimizer.step = pipelines[0].step
        return optimizer

    def get_forward_backward_func(get: Any, *args: Any, **kwargs: Any) -> Any:
        return pipelines[0].forward_backward if pipelines else get(*args, **kwargs)

    def drain() -> None:
        for pipeline in pipelines:
            with pipeline.drained():
                pass

    def drained(call: Any, *args: Any, **kwargs: Any) -> Any:
        drain()
        result = call(*args, **kwargs)
        drain()
        return result

    replacements = {
        get_megatron_optimizer: "get_megatron_optimizer",
        get_forward_backward_func: "get_forward_backward_func",
        drained: "evaluate_and_print_results save_checkpoint_and_time train",
        (lambda _, value, *__, **___: value): "logical_and_across_model_parallel_group "
        "reduce_max_stat_across_model_parallel_group",
    }
    for module, (replacement, names) in product(modules, replacements.items()):
        for name in set(names.split()) & vars(module).keys():
            call = getattr(module, name)
            setattr(module, name, wraps(call)(partial(replacement, call)))
