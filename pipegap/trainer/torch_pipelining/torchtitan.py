"""2BW for torchtitan's `Trainer`: a model spec that knows the schedule `2BW`, and its first step.

See docs/torchtitan.md. Only this file imports torchtitan.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.distributed import pipeline_parallel, utils
from torchtitan.models.common.moe import MoE
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.torch_pipelining.refusals import Replaced
from pipegap.trainer.torch_pipelining.schedule import Schedule2BW

NAME = "2BW"
"""What `parallelism.pipeline_parallel_schedule` names it."""


def with_2bw(spec: ModelSpec, **options: Any) -> ModelSpec:
    """Return the model spec with one more schedule, `2BW`, for its pipelines.

    `options` are those of `Schedule2BW`, such as `error_feedback`. The two twins that it computes
    on are copied from a stage's part before that is parallelized, and are parallelized like it.
    Raises BadInput for a model whose experts' load is balanced by a count.
    """
    for name, config, *_ in spec.traverse(MoE.Config):
        if config.load_balance_coeff is not None:
            allowed = "must be None with 2BW: its counts would mix the tokens of two batches"
            raise BadInput(f"{name}.load_balance_coeff", config.load_balance_coeff, allowed)

    def pipelining(
        model: nn.Module,
        *,
        parallelize_fn: Callable[..., nn.Module],
        loss_fn: Any,
        **more_options: Any,
    ) -> Any:
        twins: list[nn.Module] = []

        def parallelize(part: nn.Module, **how: Any) -> nn.Module:
            twins[:] = [parallelize_fn(copy.deepcopy(part), **how) for _ in range(2)]
            return parallelize_fn(part, **how)

        class WithTwins(Schedule2BW):
            def __init__(self, stage: PipelineStage, loss_fn: Any, **stage_options: Any) -> None:
                def loss(*args: Any, **kwargs: Any) -> Tensor:
                    if chunked is not None:  # it has the last layer, of the batch's own module
                        chunked.set_lm_head(stage.submod.lm_head)
                    return loss_fn(*args, **kwargs)

                super().__init__(stage, loss_fn=loss, twins=twins, **options, **stage_options)

        chunked = loss_fn if isinstance(loss_fn, ChunkedLossWrapper) else None
        # torchtitan finds it by its name: torch's own table of names is closed.
        find = pipeline_parallel.get_schedule_class

        def schedule_class(name: str) -> Any:
            return WithTwins if name == NAME else find(name)

        with Replaced(pipeline_parallel, "get_schedule_class", schedule_class):
            return spec.pipelining_fn(
                model, parallelize_fn=parallelize, loss_fn=loss_fn, **more_options
            )

    return replace(spec, pipelining_fn=pipelining)


def begin(trainer: Trainer) -> Callable[[], AbstractContextManager[None]]:
    """Completes a trainer whose model spec is `with_2bw`, at the end of its construction.

    The twins get memory, checkpoints will have the schedule's state, and the schedule clips and
    steps the trainer's optimizers and schedulers, once per batch. Returns a context for
    `train_step`, in which torchtitan's own clip and steps, a batch too early, do nothing: its log
    shows the norm of the last update. It ends drained where torchtitan then saves, validates or
    stops. Raises BadInput for another schedule, and for a batch in several steps.
    """
    schedule, config = trainer.pp_schedule, trainer.config
    if not isinstance(schedule, Schedule2BW):
        name = config.parallelism.pipeline_parallel_schedule
        raise BadInput("parallelism.pipeline_parallel_schedule", name, f"must be {NAME} here")
    if trainer.gradient_accumulation_steps > 1:
        allowed = "must be -1, one step per batch: give the pipeline more microbatches instead"
        raise BadInput("training.global_batch_size", config.training.global_batch_size, allowed)
    [part] = trainer.model_parts
    for twin in schedule.twins:
        twin.to_empty(device=next(part.parameters()).device)  # it follows the part's buffers
    if trainer.checkpointer.enable:
        trainer.checkpointer.states["schedule"] = schedule
    steppers = trainer.optimizers, trainer.lr_schedulers
    steps, norm = [stepper.step for stepper in steppers], torch.zeros((), device=trainer.device)

    def update() -> None:
        norm.copy_(schedule.clip_grad_norm_(config.training.max_norm))
        # A checkpoint may still be copied from these weights; torchtitan waits before its own step.
        trainer.checkpointer.maybe_wait_for_staging()
        for step in steps:
            step()

    @contextmanager
    def later() -> Iterator[None]:
        with ExitStack() as stack:
            for stepper in steppers:
                stack.enter_context(Replaced(stepper, "step", lambda: None))
            stack.enter_context(Replaced(utils, "clip_grad_norm_", lambda *_, **__: norm))
            yield
        if _pauses(trainer):
            with schedule.drained():  # until the next batch
                pass

    schedule.update = update
    return later


def _pauses(trainer: Trainer) -> bool:
    """Whether torchtitan saves, validates or stops after this step."""
    step, config = trainer.step, trainer.config
    is_last = step == config.training.steps
    saves = trainer.checkpointer.enable and trainer.checkpointer._should_save(step, is_last)
    validates = config.validator.enable and trainer.validator.should_validate(step)
    return bool(is_last or saves or validates)
