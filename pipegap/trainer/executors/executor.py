"""What both executors have in common: the gradient of a batch, clipped, and the passes over it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import get_total_norm

from pipegap.trainer.base.flat import chosen, local_parts
from pipegap.trainer.models.layers import Output
from pipegap.trainer.schedules.operations import Op, Schedule
from pipegap.trainer.stages.backward import JoinedGradients
from pipegap.trainer.stages.probe import Comparison
from pipegap.trainer.stages.stage import Stage

# From the stages' gradients of a batch to one clipped gradient of the model.
#
# The global norm is made from one vector with one slot per weight, in the model's order and tied
# weights once, so that it is the same number for any number of stages and processes.


@dataclass(frozen=True)
class Update:
    """An applied update: batch, its mean loss in nats per token, the gradient's norm before the
    clip, and the learning rate."""

    batch: int
    loss: float
    grad_norm: float
    lr: float


class Diverged(ArithmeticError):
    """The loss or the gradient of a batch is not finite; its update was not applied."""

    def __init__(self, batch: int) -> None:
        super().__init__(f"the loss or the gradient of batch {batch} is not finite")
        self.batch = batch


@dataclass(frozen=True)
class Slots:
    """The slots of a stage's weights in a vector [size]: consecutive ones from `start` on.

    Only `owned` weights have a slot; the second copy of a tied weight is not owned, and neither is
    a weight whose gradient does not belong to the norm.
    """

    start: int
    size: int
    owned: list[bool]

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """A vector [size]: the norm of each owned weight's gradient in its slot, 0 elsewhere.

        The sum of these vectors over all ranks holds the norms of the whole model.
        """
        if isinstance(gradients, JoinedGradients):
            norms = gradients.norms()
            norms = norms if all(self.owned) else norms[torch.tensor(self.owned)]
        else:
            owned = [g for g, is_owned in zip(gradients, self.owned, strict=True) if is_owned]
            norms = torch.stack(torch._foreach_norm(owned)) if owned else gradients[0].new_empty(0)
        # [owned] → [size]: the slots of a stage are consecutive.
        padding = self.start, self.size - self.start - len(norms)
        return F.pad(norms, padding) if any(padding) else norms


def slots(names: Sequence[Sequence[str | None]]) -> list[Slots]:
    """Return the slots of each stage.

    `names[s]` has the name of each weight of stage s, or None for a weight without a slot.
    """
    names_with_slot: dict[str, None] = {}  # in order, as a set is not
    starts, owned = [], []
    for of_stage in names:
        starts.append(len(names_with_slot))
        # The first stage that names a tied weight owns it.
        owned.append([name is not None and name not in names_with_slot for name in of_stage])
        names_with_slot.update({name: None for name in of_stage if name is not None})
    size = len(names_with_slot)
    return [Slots(start, size, is_owned) for start, is_owned in zip(starts, owned, strict=True)]


@dataclass(frozen=True)
class Clip:
    """Scales gradients down to a norm of at most `norm`, as torch's clip_grad_norm_ does.

    With `by_stage` each stage is clipped by the norm of its own weights, so that none waits for
    another one, and a tied weight by its own norm, which both of its stages know: so its copies
    stay equal. The default is the norm of the whole model.
    """

    norm: float
    by_stage: bool = False

    def stage(
        self, stage: Stage, gradients: Sequence[Tensor], norm_of_model: Callable[[], Tensor]
    ) -> None:
        """Clips a stage's gradients in place. `by_stage` does not ask for the model's norm."""
        numbers = [i for i, slot in enumerate(stage.slots) if slot is not None]
        if not self.by_stage:
            self(chosen(gradients, numbers), norm_of_model())
            return
        untied = chosen(gradients, (i for i in numbers if not stage.is_tied[i]))
        tied = [[gradients[i]] for i in numbers if stage.is_tied[i]]
        for together in [untied, *tied] if untied else tied:
            self(together, get_total_norm(together))

    def __call__(self, gradients: Sequence[Tensor], norm: Tensor) -> None:
        """Clips gradients of this norm in place."""
        # 1e-6 as in torch. A tensor all along: a number would wait for the device.
        scale = (self.norm / (norm + 1e-6)).clamp(max=1.0)
        if isinstance(gradients, JoinedGradients):
            gradients.multiply(scale)  # in the graph of the step, which reads them anyway
        else:
            torch._foreach_mul_(local_parts(gradients), scale)


# Which operations are executed, in which pass over a batch.

Loss = Callable[[Output, Tensor], Tensor]


def against(targets: Tensor, loss: Loss) -> Callable[[Output], Tensor]:
    """The loss of an output against these targets, int64 [rows, length]."""
    return lambda output: loss(output, targets)


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
        # −1 is no batch of the trial. Its gradients, which `take_gradients` returns, are dropped.
        op = Op("F", index, batch=-1, microbatch=0, version=0, tied_version=0)
        of_output = against(targets, loss) if index == last else None
        output = stage.forward(op, inputs if index == 0 else hidden, of_output)
        stage.backward_input(op, None if of_output else torch.zeros_like(output))
        stage.backward_weights(op)
        stage.take_gradients()


OnUpdate = Callable[[Update], None]
T = TypeVar("T")


class Executor(ABC):
    """Executes a schedule on the stages of this process, which have `indices` in the model.

    `batch(t)` returns an int64 tensor [batch_size, seq_len + 1]. `loss(output, targets)` averages
    over the tokens of a microbatch; microbatches are equally long, so the mean of their losses is
    that of the batch. Replica r of R trains on the r-th of R parts of each batch, which it divides
    into `num_microbatches` equal microbatches.
    """

    state_is_a_copy: ClassVar[bool] = False
    """Whether no later update changes what `state` returned."""

    def __init__(
        self,
        stages: Sequence[Stage],
        indices: Iterable[int],
        schedule: Schedule,
        batch: Callable[[int], Tensor],
        loss: Loss,
        num_replicas: int,
    ) -> None:
        self._stages, self._schedule = list(stages), schedule
        self._at = dict(zip(indices, stages, strict=True))
        self._last = schedule.num_stages - 1
        self._loss = loss
        # The first and the last stage ask for a batch at each microbatch. The cache holds as many
        # batches as may be in flight.
        self._batch = lru_cache(maxsize=schedule.num_stages + 1)(batch)
        self._num_parts = schedule.num_microbatches * num_replicas
        self._do: Mapping[str, Callable[[Op], Update | None]] = {
            "F": self._forward,
            "B": self._backward,
            "I": self._backward_input,
            "W": self._backward_weights,
            "U": self._update,
        }
        self._probes = False
        """Whether a batch is only there for its fresh gradient, which no correction changes."""

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages of this process, in the order of the model."""
        return self._stages

    def run(self, first: int, last: int, on_update: OnUpdate) -> None:
        """Trains on batches first … last − 1 of one phase, then drains.

        Calls `on_update` with each update, in order, once it is applied. Raises Diverged before
        applying a bad one, on every rank (with a clip by stage other stages may have gone on
        meanwhile), and PeerLost if another rank is gone.
        """
        self._probes = False
        self._execute(self._schedule.operations(first, last), on_update)

    def probe(self, batch: int) -> None:
        """Records what the update of `batch`, the next one, would be if its gradient were fresh.

        Nothing is recorded if that gradient is not finite.
        """
        self._probes = True
        try:
            self._execute(self._schedule.undelayed(batch), lambda update: None)
        except Diverged:
            for stage in self._stages:  # some may have recorded theirs: all forget it
                stage.take_comparison()

    def agreed(self, value: T) -> T:
        """Returns in every process the value that the recording process passes as `value`."""
        return value

    def take_comparison(self) -> Comparison:
        """How the last update compares with the probe's, by weight; tied weights count once."""
        return {k: v for stage in self._stages for k, v in stage.take_comparison().items()}

    def state(self) -> dict[str, dict[str, Any]]:
        """By name, what each weight needs in order to resume. To be called between runs only."""
        return {k: v for stage in self._stages for k, v in stage.state().items()}

    def restore(self, state: dict[str, dict[str, Any]]) -> None:
        """Restores what `state` returned, here or of a model that was cut into other stages."""
        for stage in self._stages:
            stage.restore(state)

    def weights(self) -> dict[str, Tensor]:
        """The newest weights by name, tied ones once, on the CPU."""
        return {k: v for stage in self._stages for k, v in stage.weights().items()}

    def _finish(self, stage: Stage, batch: int, gradients: Sequence[Tensor]) -> None:
        """Makes a stage's update, W(t) → W(t + 1), or records what it would be."""
        (stage.probe if self._probes else stage.update)(batch, gradients)

    def _microbatch(self, op: Op, replica: int) -> tuple[Tensor, Tensor]:
        """Tokens for the first stage and targets for the last one, each int64 [rows, seq_len]."""
        # Parts of equal size, [rows, seq_len + 1], those of a replica next to each other.
        parts = self._batch(op.batch).chunk(self._num_parts)
        rows = parts[replica * self._schedule.num_microbatches + op.microbatch]
        return rows[:, :-1], rows[:, 1:]

    def _loss_of(self, op: Op, replica: int) -> Callable[[Output], Tensor]:
        _, targets = self._microbatch(op, replica)
        return against(targets, self._loss)

    @abstractmethod
    def evaluate(self, batches: Iterable[Tensor]) -> float:
        """Mean loss of the newest weights in nats per token; `batches` have training's shape."""

    @abstractmethod
    def usage(self) -> dict[str, Any]:
        """The shares of time without work and of waits for updates, and peak memory, by rank."""

    @abstractmethod
    def _execute(self, operations: Sequence[Sequence[Op]], on_update: OnUpdate) -> None: ...

    @abstractmethod
    def _forward(self, op: Op) -> None: ...

    @abstractmethod
    def _backward(self, op: Op) -> None: ...

    @abstractmethod
    def _backward_input(self, op: Op) -> None: ...

    @abstractmethod
    def _backward_weights(self, op: Op) -> None: ...

    @abstractmethod
    def _update(self, op: Op) -> Update | None: ...
