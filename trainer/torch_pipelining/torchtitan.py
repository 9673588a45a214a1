"""2BW for torchtitan's `Trainer`: a model spec that knows the schedule `2BW`, and its first step.

See docs/torchtitan.md. Only this file imports torchtitan.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.distributed import pipeline_parallel
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
        model: nn.Module, *, parallelize_fn: Callable[..., nn.Module], loss_fn: Any, **rest: Any
    ) -> Any:
        twins: list[nn.Module] = []

        def parallelize(part: nn.Module, **how: Any) -> nn.Module:
            twins[:] = [parallelize_fn(copy.deepcopy(part), **how) for _ in range(2)]
            return parallelize_fn(part, **how)

        class WithTwins(Schedule2BW):
            def __init__(self, stage: PipelineStage, loss_fn: Any, **given: Any) -> None:
                def loss(*args: Any, **kwargs: Any) -> Tensor:
                    if chunked is not None:  # it has the last layer, of the batch's own module
                        chunked.set_lm_head(stage.submod.lm_head)
                    return loss_fn(*args, **kwargs)

                super().__init__(stage, loss_fn=loss, twins=twins, **options, **given)

        chunked = loss_fn if isinstance(loss_fn, ChunkedLossWrapper) else None
        # torchtitan finds it by its name: torch's own table of names is closed.
        find = pipeline_parallel.get_schedule_class

        def with_mine(name: str) -> Any:
            return WithTwins if name == NAME else find(name)

        with Replaced(pipeline_parallel, "get_schedule_class", with_mine):
            return spec.pipelining_fn(model, parallelize_fn=parallelize, loss_fn=loss_fn, **rest)

    return replace(spec, pipelining_fn=pipelining)


def begin(trainer: Trainer, update: Callable[[], object]) -> None:
    """Completes a trainer whose model spec is `with_2bw`, at the end of its construction.

    The twins get memory, `update` will be called once per batch, and checkpoints will have the
    schedule's state. Raises BadInput for another schedule, and for a batch in several steps.
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
    schedule.update = update
    if trainer.checkpointer.enable:
        trainer.checkpointer.states["schedule"] = schedule
