"""A stage whose forward, backward and update are graphs of torch's compiler."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.compiled.chosen import without_graph
from pipegap.trainer.compiled.passes import (
    AwaitsTargets,
    Graph,
    Passes,
    Signature,
    StagePlace,
    graph_of_stage,
)
from pipegap.trainer.compiled.step import Step
from pipegap.trainer.compiled.versions import Blocks, StackedParts, StackedVersions
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers.routing import Kind, Parameters
from pipegap.trainer.schedules.operations import Op
from pipegap.trainer.stages.stage import Stage
from pipegap.trainer.stages.versions import Versions


class _Passed(NamedTuple):
    """A microbatch between its forward and its backward.

    `gradients` are those of the input and of each block, if the stage ends in the loss.
    """

    x: Tensor
    gradients: list[Tensor | None]


class CompiledStage(Stage):
    """A `Stage` on a CPU that makes its gradients and its updates by graphs.

    Forward, backward and loss are one graph on the last stage; before it, the backward's graph
    computes the forward again. An update is one graph with the clipped gradients as input, except
    the first one, which the optimizer makes itself: many begin otherwise, and their state begins
    there. Evaluations are a graph for batches of the first one's shape, if the newest weights are
    evaluated as they are; else they, and probes, are a plain stage's.
    """

    def __init__(
        self,
        module: nn.Module,
        kinds: Mapping[str, Kind],
        make_optimizer: Callable[[Parameters], Optimizer],
        make_correction: Callable[[Sequence[int]], NoCorrection],
        lr_factor: Callable[[int], float],
        *,
        place: StagePlace,
        num_threads: int,
        **options: Any,
    ) -> None:
        super().__init__(module, kinds, make_optimizer, make_correction, lr_factor, **options)
        self._place, self._num_threads = place, num_threads
        self._step = Step(self.optimizer, self._correction, self._stacks, self._layout, num_threads)
        self._passed: dict[tuple[int, int, int], _Passed] = {}
        self._sum_of: dict[int, list[Tensor]] = {}
        self._evaluated: torch.Size | None = None

    @override
    def _make_versions(self, module: nn.Module, dtype: torch.dtype) -> Versions:
        shapes = [weight.shape for weight in module.parameters()]
        self._layout = Blocks(shapes, list(zip(self._kinds, self.is_tied, strict=True)))
        self._stacks = StackedVersions(module, self.lags, self._layout)
        return self._stacks

    @property
    def without_graph(self) -> list[str]:
        """Which of the groups `optimizer` and `correction` are not part of a graph."""
        return without_graph(self.optimizer, self._correction)

    @override
    def forward(
        self,
        op: Op,
        x: Tensor,
        loss: Callable[[Any], Tensor] | None = None,
        replica: int = 0,
    ) -> Tensor:
        self._read[op.batch] = self._versions_of(op)
        key, x = (op.batch, op.microbatch, replica), x.contiguous()
        if loss is not None:
            return loss(AwaitsTargets(lambda targets: self._with_loss(key, x, targets)))
        self._passed[key] = _Passed(x, [])
        blocks = self._stacks.read(self._read[op.batch])
        return self._graph("forward", x, self.dtype)(x, *blocks)

    def _with_loss(self, key: tuple[int, int, int], x: Tensor, targets: Tensor) -> Tensor:
        blocks = self._stacks.read(self._read[key[0]])
        graph = self._graph("loss", x, self.dtype)
        loss, *gradients = graph(x, targets.contiguous(), *blocks)
        self._passed[key] = _Passed(x, gradients)
        return loss

    def _graph(self, kind: Passes, x: Tensor, dtype: torch.dtype) -> Graph:
        members = tuple(tuple(numbers) for numbers in self._layout.members)
        signature = Signature(members, x.shape, x.dtype, dtype, self._num_threads)
        return graph_of_stage(self._place, signature, kind)

    @override
    def backward_input(self, op: Op, gradient: Tensor | None, replica: int = 0) -> Tensor | None:
        key = op.batch, op.microbatch, replica
        x, gradients = self._passed[key]
        if gradient is not None:
            blocks = self._stacks.read(self._versions_of(op))
            graph = self._graph("backward", x, self.dtype)
            gradients = graph(x, gradient.contiguous(), *blocks)
            self._passed[key] = _Passed(x, gradients)
        return gradients[0]

    @override
    def backward_weights(self, op: Op, replica: int = 0) -> None:
        _, (_, *gradients) = self._passed.pop((op.batch, op.microbatch, replica))
        blocks = [block for block in gradients if block is not None]
        if replica in self._sum_of:
            torch._foreach_add_(self._sum_of[replica], blocks)
        else:
            self._sum_of[replica] = blocks

    @override
    def take_gradients(self) -> list[Tensor]:
        replicas, self._sum_of = self._sum_of, {}
        total = replicas.pop(0)
        for replica in sorted(replicas):
            torch._foreach_add_(total, replicas[replica])
        return StackedParts(self._layout, total)

    @override
    def update(self, batch: int, gradients: Sequence[Tensor]) -> None:
        if not isinstance(gradients, StackedParts) or not self._step.is_ready():
            super().update(batch, gradients)
        else:
            self._step(self._start_update(batch), gradients.blocks)
            self._look_ahead(batch)

    @override
    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Any:
        self._evaluated = self._evaluated or x.shape
        weights = self._stacks.master
        pairs = zip(self.evaluated(), weights, strict=True)
        are_newest = all(tensor is weight for tensor, weight in pairs)
        if x.shape != self._evaluated or not are_newest:
            return super().evaluate(x)
        x = x.contiguous()
        blocks = self._stacks.read([self._stacks.newest] * len(weights))
        if self._place.number < len(self._place.split) - 1:
            return self._graph("forward", x, self.eval_dtype)(x, *blocks)
        graph = self._graph("evaluation", x, self.eval_dtype)
        return AwaitsTargets(lambda targets: graph(x, targets.contiguous(), *blocks))

    @override
    def state(self) -> dict[str, dict[str, Any]]:
        self._step.release()
        return super().state()

    @override
    def restore(self, state: Mapping[str, dict[str, Any]]) -> None:
        self._step.release()
        super().restore(state)
