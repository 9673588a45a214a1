"""Passes over a batch: for an update, and to probe a fresh gradient."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipegap.trainer.models.loss import Output
from pipegap.trainer.schedules.operations import Op
from pipegap.trainer.stages.stage import Stage

Loss = Callable[[Output, Tensor], Tensor]


def against(targets: Tensor, loss: Loss) -> Callable[[Output], Tensor]:
    """The loss of an output against these targets, int64 [rows, length]."""
    return lambda output: loss(output, targets)


@dataclass(frozen=True)
class Pass:
    """One way to go forwards and backwards through a batch, and what is done with the gradients.

    `finish(stage, batch, gradients)` gets each stage's gradients of `loss`. Executors call it where
    the schedule has the batch's update.
    """

    # In training this is the delayed update itself.
    finish: Callable[[Stage, int, Sequence[Tensor]], None]
    is_corrected: bool


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
        of_output = against(targets, loss) if index == last else None
        output = stage.forward(op, inputs if index == 0 else hidden, of_output)
        stage.backward_input(op, None if of_output else torch.zeros_like(output))
        stage.backward_weights(op)
        stage.take_gradients()


TRAINING = Pass(_update, is_corrected=True)
FRESH_GRADIENT = Pass(Stage.probe, is_corrected=False)
