"""A decoder with its initial weights, as one stage and as several that train."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.gradients import Clip
from pipegap.trainer.models.decoder import Decoder
from pipegap.trainer.models.loss import cross_entropy
from pipegap.trainer.optimizers.in_parts import optimizer_in_parts
from pipegap.trainer.optimizers.routing import is_entrywise
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.stages.stage import Stage
from tests.support import toy
from tests.support.delayed import ADAMW

EMBEDDING = "model.embed_tokens.weight"


def whole(recipe: Decoder, seed: int = 0) -> nn.Module:
    module = recipe.stage(0, recipe.split(1, 8))
    recipe.initialise(module, seed)
    return module


def modules(recipe: Decoder, num_stages: int) -> list[nn.Module]:
    """The stages, in float64."""
    split = recipe.split(num_stages, 8)
    stages = [recipe.stage(index, split) for index in range(num_stages)]
    for stage in stages:
        recipe.initialise(stage, 0)
    return [stage.double() for stage in stages]


def emulated(
    recipe: Decoder,
    schedule: Schedule,
    batch: Callable[[int], Tensor],
    num_replicas: int = 1,
    *,
    clips_by_stage: bool = False,
) -> Emulated:
    """By AdamW with Error Feedback and a clip, in float64: a different order of sums stays far
    below any difference that counts."""
    stages, tied = [], frozenset([EMBEDDING] if schedule.num_stages > 1 else [])
    for module, lag in zip(modules(recipe, schedule.num_stages), schedule.lags, strict=True):
        stages.append(
            Stage(
                module,
                recipe.kinds(module),
                partial(optimizer_in_parts, ADAMW, is_entrywise=is_entrywise(ADAMW.func)),
                partial(ErrorFeedback, schedule.num_updates, coefficient=1.0, lag=1),
                toy.lr_factor,
                lag=lag,
                tied=tied,
                tied_lag=schedule.tied_lag,
                dtype=torch.float64,
            )
        )
    clip = Clip(0.5, by_stage=clips_by_stage)
    return Emulated(stages, schedule, batch, cross_entropy, clip, num_replicas)
