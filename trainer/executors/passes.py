"""Passes over a batch: for an update, to probe a fresh gradient, to estimate curvature."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.base.randomness import stream_seed
from trainer.models.loss import Output, parts
from trainer.schedules.operations import Op
from trainer.stages.stage import Stage

Loss = Callable[[Output, Tensor], Tensor]
LossOfOutput = Callable[[Output], Tensor]


class MicrobatchPlace(NamedTuple):
    """The place of a microbatch in its batch, which replicas and microbatches divide into
    `num_parts` equal parts."""

    batch: int
    microbatch: int
    replica: int
    num_parts: int


def against_targets(loss: Loss, targets: Tensor, place: MicrobatchPlace) -> LossOfOutput:
    """The loss against the data's own targets: the one that is trained."""
    return lambda output: loss(output, targets)


def against_samples(loss: Loss, targets: Tensor, place: MicrobatchPlace) -> LossOfOutput:
    """sqrt(B) times the loss against labels that are drawn from the model's own predictions.

    B is the number of tokens of the batch. The square of its mean gradient estimates the diagonal
    of the Gauss-Newton matrix (Sophia, arXiv 2305.14342, algorithm 2). Each
    microbatch draws, by the Gumbel-max trick, from a stream of its own, which is the same in every
    executor.
    """
    num_tokens = targets.numel() * place.num_parts
    seed = stream_seed(torch.initial_seed(), "labels", *map(str, place))

    def loss_of(output: Output) -> Tensor:
        generator = torch.Generator(targets.device).manual_seed(seed)
        with torch.no_grad():
            labels = torch.cat([_drawn(logits, generator) for logits in parts(output)])
        return math.sqrt(num_tokens) * loss(output, labels.view_as(targets))

    return loss_of


def _drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    """A label for each row of logits [tokens, vocab]."""
    chances = logits.float().softmax(-1)
    noise = torch.empty_like(chances).exponential_(generator=generator)
    return (chances / noise).argmax(-1)


@dataclass(frozen=True)
class Pass:
    """One way to go forwards and backwards through a batch, and what is done with the gradients.

    `finish(stage, batch, gradients)` gets each stage's gradients of `loss`. Executors call it where
    the schedule has the batch's update. Only a pass that `is_training` has in its gradients what
    the model adds to the loss.
    """

    # In training this is the delayed update itself.
    finish: Callable[[Stage, int, Sequence[Tensor]], None]
    is_corrected: bool
    is_clipped: bool
    is_training: bool
    loss: Callable[[Loss, Tensor, MicrobatchPlace], LossOfOutput] = against_targets


def _update(stage: Stage, batch: int, gradients: Sequence[Tensor]) -> None:
    stage.update(batch, gradients)


def practise(stages: Mapping[int, Stage], last: int, loss: Loss, message: torch.Size) -> None:
    """Goes forward and backward once on each stage of a rank, by its number, on zeros.

    A rank does so before its first message: passes are compiled and kernels loaded then. On a GPU a
    message is a kernel that runs until it is received, and to load another one CUDA waits for it:
    two ranks that load kernels while each has a message for the other would wait for ever.
    `message` is the shape of a microbatch's hidden states; stage `last` has the loss.
    """
    rows, length, _ = message
    for index, stage in stages.items():
        device = stage.versions.master[0].device
        tokens = torch.zeros(rows, length + 1, dtype=torch.int64, device=device)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        hidden = torch.zeros(message, dtype=stage.dtype, device=device)
        op = Op("F", index, batch=-1, microbatch=0, version=0, tied_version=0)
        place = MicrobatchPlace(op.batch, op.microbatch, replica=0, num_parts=1)
        of_output = against_targets(loss, targets, place) if index == last else None
        output = stage.forward(op, inputs if index == 0 else hidden, of_output)
        stage.backward_input(op, None if of_output else torch.zeros_like(output))
        stage.backward_weights(op)
        stage.take_gradients()


TRAINING = Pass(_update, is_corrected=True, is_clipped=True, is_training=True)
FRESH_GRADIENT = Pass(Stage.probe, is_corrected=False, is_clipped=True, is_training=True)
CURVATURE = Pass(
    Stage.observe, is_corrected=False, is_clipped=False, is_training=False, loss=against_samples
)
