"""A stage whose forward, backward and update are graphs of torch's compiler."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.compiled.passes import (
    AwaitsTargets,
    Blocks,
    Graph,
    Passes,
    Signature,
    StackedParts,
    StackedVersions,
    StagePlace,
    graph_of,
    graph_of_stage,
)
from pipegap.trainer.compiled.rules import Key, Rule, feedback, rules, without_graph
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers.routing import Kind, Parameters
from pipegap.trainer.schedules.operations import Op
from pipegap.trainer.stages.stage import Stage
from pipegap.trainer.stages.versions import Versions

# The updates of a compiled stage, after its first one.
#
# The optimizer's step of the whole stage, from one version to the next, is one graph whatever its
# pipeline, and Error Feedback is another one whatever the optimizer. What they must equal, but
# for rounding, is `trainer.stages.update.corrected_update`.


class Block(NamedTuple):
    """What decides the graph of one block.

    `shape` is [members, *shape of a weight], `state` has the shape of each tensor of the rule,
    `numbers` the names of its numbers.
    """

    rule: Rule
    shape: torch.Size
    state: tuple[torch.Size, ...]
    numbers: tuple[str, ...]


class _Ruled(NamedTuple):
    """A block of weights, the options of its group, its rule, and what the rule keeps, stacked."""

    group: dict[str, Any]
    rule: Rule
    state: list[Tensor]


class _Held(NamedTuple):
    """What updates work on between two releases; `earlier` is u_{t−1} of each block, if a graph
    makes Error Feedback; `spare` is where a block with one version is stepped to; `steps` are those
    that the optimizer has made of each block."""

    blocks: list[_Ruled]
    earlier: list[Tensor]
    spare: list[Tensor | None]
    graph: Graph
    steps: list[int]


class Step:
    """Turns W(t) into W(t + 1) by graphs, if the optimizer has a rule for each weight.

    The tensors of the optimizer's state become parts of stacks, and only the stacks know the
    u_{t−1} of Error Feedback. `release` brings the correction up to date, so that others may read
    or replace both; the next update stacks them again.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        correction: NoCorrection,
        versions: StackedVersions,
        layout: Blocks,
        num_threads: int,
    ) -> None:
        self._optimizer, self._correction, self._versions = optimizer, correction, versions
        self._layout, self._num_threads = layout, num_threads
        self._feedback = feedback(correction)
        self._held: _Held | None = None
        self._last_factors: tuple[tuple[int, ...], Tensor] | None = None

    def is_ready(self) -> bool:
        """Whether the next update can be made by the graph; the first one cannot."""
        # The state that is stacked exists once the optimizer has made a step.
        if self._held is None and self._can_begin():
            self._held = self._hold()
        return self._held is not None

    def release(self) -> None:
        """Lets go of the stacks: the correction gets its u_{t−1} back."""
        if self._held is not None and self._feedback is not None:
            updates = self._layout.tensors(self._held.earlier)
            pairs = zip(self._correction.state(), updates, strict=True)
            self._correction.restore([{**state, "update_1": update} for state, update in pairs])
        self._held = None

    @torch.no_grad()
    def __call__(self, delays: Sequence[int], gradients: StackedParts) -> None:
        """Makes the next version."""
        assert self._held is not None
        steps = self._held.steps
        steps[:] = [step + 1 for step in steps]
        pairs = self._versions.step()  # names version t + 1 the newest, whose values follow here
        olds = [old for old, _ in pairs]
        news = [
            new if spare is None else spare
            for (_, new), spare in zip(pairs, self._held.spare, strict=True)
        ]
        tensors = self._tensors(olds, news, gradients.blocks)
        self._held.graph(self._numbers(steps), gradients.take_factor(), *tensors)
        for group in self._optimizer.param_groups:
            if "step" in group:  # else the graph counts, in the state
                group["step"] += 1
        for block, step in zip(self._held.blocks, steps, strict=True):
            block.rule.renew(block.group, step, block.state)
        updates: list[Tensor] = []
        if self._feedback is not None:
            graph = feedback_graph(tuple(self._layout.shapes), self._num_threads)
            factors = self._factors(tuple(delays))
            self._held.earlier[:] = graph(factors, *olds, *news, *self._held.earlier)
        elif self._correction.moves_weights:
            updates = list(torch._foreach_sub(olds, news))
        # Not earlier: until here a block with one version had to stay W(t), for u_t.
        for (_, new), stepped in zip(pairs, news, strict=True):
            if new is not stepped:
                new.copy_(stepped)
        if updates:
            self._correction.apply(self._versions.master, self._layout.tensors(updates), delays)

    def _can_begin(self) -> bool:
        ruled = rules(self._optimizer)
        has_state = (self._optimizer.state.get(w) for w, (_, rule) in ruled.items() if rule.keys)
        return len(ruled) == len(self._versions.master) and all(has_state)

    def _hold(self) -> _Held:
        blocks = [self._ruled(b) for b in range(len(self._layout.members))]
        earlier: list[Tensor] = []
        if self._feedback is not None:
            pairs = zip(self._correction.state(), self._versions.master, strict=True)
            # Zeros where no update has been remembered: `_feedback` corrects nothing there.
            updates = [s["update_1"] if s else torch.zeros_like(weight) for s, weight in pairs]
            earlier = self._layout.stacked(updates)
        nums = zip(self._layout.shapes, self._versions.num_slots, strict=True)
        # A graph reads W(t) and writes W(t + 1), which may not lie in one block.
        spare = [torch.empty(shape) if num == 1 else None for shape, num in nums]
        graph = update_graph(self._kind(blocks), self._num_threads)
        steps = [block.rule.done(block.group, block.state) for block in blocks]
        return _Held(blocks, earlier, spare, graph, steps)

    def _ruled(self, b: int) -> _Ruled:
        weights = [self._versions.master[i] for i in self._layout.members[b]]
        group, rule = rules(self._optimizer)[weights[0]]
        return _Ruled(group, rule, [self._stacked(weights, key) for key in rule.keys])

    def _stacked(self, weights: Sequence[nn.Parameter], key: Key) -> Tensor:
        """The stack of these weights' tensors at `key`, of which the state then has the parts."""
        *path, last = key
        holders: list[Any] = [self._optimizer.state[weight] for weight in weights]
        for part in path:
            holders = [holder[part] for holder in holders]
        stack = torch.stack([holder[last] for holder in holders])  # [members, *shape]
        for holder, of_part in zip(holders, stack.unbind(), strict=True):
            holder[last] = of_part  # a view: the optimizer's state follows the graph
        return stack

    def _kind(self, blocks: Sequence[_Ruled]) -> tuple[Block, ...]:
        # Only the names of the numbers count. At step 2: at step 1 SOAP's would divide by zero.
        return tuple(
            Block(
                rule,
                shape,
                tuple(tensor.shape for tensor in state),
                numbers=tuple(rule.numbers(group, 2)),
            )
            for (group, rule, state), shape in zip(blocks, self._layout.shapes, strict=True)
        )

    def _numbers(self, steps: Sequence[int]) -> Tensor:
        assert self._held is not None
        numbers: list[float] = []
        by_group: dict[tuple[int, int], list[float]] = {}  # a group has one rule
        for (group, rule, _), step in zip(self._held.blocks, steps, strict=True):
            key = id(group), step
            if key not in by_group:
                by_group[key] = [*rule.numbers(group, step).values()]
            numbers += by_group[key]
        return torch.tensor(numbers, dtype=torch.float32)

    def _factors(self, delays: tuple[int, ...]) -> Tensor:
        """λ of each member of each block."""
        if self._last_factors is None or self._last_factors[0] != delays:
            assert self._feedback is not None
            factors = [self._feedback(delays[i]) for of in self._layout.members for i in of]
            self._last_factors = delays, torch.tensor(factors, dtype=torch.float32)
        return self._last_factors[1]

    def _tensors(
        self, olds: Sequence[Tensor], news: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """What the graph takes of each block, in its order."""
        assert self._held is not None
        for block, *of_weights in zip(self._held.blocks, olds, news, gradients, strict=True):
            yield from of_weights
            yield from block.state


@cache
def update_graph(blocks: tuple[Block, ...], num_threads: int) -> Graph:
    """(numbers, factor, *tensors) → nothing.

    `numbers` are those of each block's rule; gradients are multiplied by `factor`, a scalar. The
    tensors are, block by block, the old version, the new one, which lies elsewhere, the gradients
    and the tensors of the rule. The new version and the tensors of the rule are changed in place.
    """

    def function(numbers: Tensor, factor: Tensor, *tensors: Tensor) -> None:
        remaining, at = iter(tensors), 0
        for block in blocks:
            old, new, gradients = next(remaining), next(remaining), next(remaining) * factor
            state = [next(remaining) for _ in block.state]
            values = numbers[at : at + len(block.numbers)].unbind()
            at += len(block.numbers)
            numbers_of_block = dict(zip(block.numbers, values, strict=True))
            new.copy_(block.rule.stepped(old, gradients, state, numbers_of_block))

    examples = [torch.zeros(sum(len(block.numbers) for block in blocks)), torch.zeros(())]
    for block in blocks:
        examples += [torch.zeros(block.shape) for _ in range(3)]
        examples += [torch.zeros(shape) for shape in block.state]
    return graph_of(function, examples, num_threads)


@cache
def feedback_graph(shapes: tuple[torch.Size, ...], num_threads: int) -> Graph:
    """(factors, *W(t), *stepped, *u_{t−1}) → u_t of each block; all take one tensor per block.

    `factors` are λ of each member of each block; λ = 0 corrects nothing. The stepped weights are
    corrected in place.
    """
    num = len(shapes)

    def function(factors: Tensor, *tensors: Tensor) -> list[Tensor]:
        parts = factors.split([shape[0] for shape in shapes])
        updates = []
        for b, of_block in enumerate(parts):
            old, stepped, earlier = tensors[b::num]  # of three lists of blocks, end to end
            updates.append(old - stepped)
            stepped.copy_(stepped + _feedback(updates[-1], earlier, of_block))
        return updates

    examples = [torch.zeros(shape) for _ in range(3) for shape in shapes]
    return graph_of(
        function, [torch.zeros(sum(shape[0] for shape in shapes)), *examples], num_threads
    )


def _feedback(update: Tensor, earlier: Tensor, factors: Tensor) -> Tensor:
    """λ (u_{t−1} − u_t) of each member, or 0 where u_{t−1} is zero."""
    entries = tuple(range(1, update.ndim))  # all dimensions but that of the members
    factors = factors * (earlier.abs().sum(entries) != 0)
    return factors.view(-1, *[1] * len(entries)) * (earlier - update)


# A stage whose forward, backward and update are graphs of torch's compiler.


class _Passed(NamedTuple):
    """A microbatch between its forward and its backward.

    `gradients` are those of the input and of each block, if the stage ends in the loss.
    """

    x: Tensor
    gradients: list[Tensor | None]


class CompiledStage(Stage):
    """A `Stage` on a CPU that makes its gradients and its updates by graphs.

    Forward, backward and loss are one graph on the last stage; before it, the backward's graph
    computes the forward again. An update is one graph with the gradients and the factor of their
    clip as input, except the first one, which the optimizer makes itself: many begin otherwise, and
    their state begins there. Evaluations are a graph for batches of the first one's shape, if the
    newest weights are evaluated as they are; else they, and probes, are a plain stage's.
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
        self._graphs: dict[tuple[Passes, torch.Size, torch.dtype, torch.dtype], Graph] = {}
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
        # A graph takes strides as those of its example, and checks nothing at a call.
        key, x = (op.batch, op.microbatch, replica), x.contiguous()
        if loss is not None:
            # `loss` alone has the targets: `loss_of` hands them to the graph.
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
        key = kind, x.shape, x.dtype, dtype
        if key not in self._graphs:  # to hash a signature takes longer than to look here
            members = tuple(tuple(numbers) for numbers in self._layout.members)
            signature = Signature(members, x.shape, x.dtype, dtype, self._num_threads)
            self._graphs[key] = graph_of_stage(self._place, signature, kind)
        return self._graphs[key]

    @override
    def backward_input(self, op: Op, gradient: Tensor | None, replica: int = 0) -> Tensor | None:
        key = op.batch, op.microbatch, replica
        x, gradients = self._passed[key]
        if gradient is not None:  # else the graph of the loss has made them at the forward
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
    def take_gradients(self) -> Sequence[Tensor]:
        replicas, self._sum_of = self._sum_of, {}
        total = replicas.pop(0)
        for replica in sorted(replicas):
            torch._foreach_add_(total, replicas[replica])
        return StackedParts(self._layout, total)

    @override
    def correct(self, batch: int, gradients: Sequence[Tensor]) -> None:
        # Who reads the gradients one by one pays for a view of each.
        if type(self._correction).gradient is not NoCorrection.gradient:
            super().correct(batch, gradients)

    @override
    def update(self, batch: int, gradients: Sequence[Tensor]) -> None:
        if isinstance(gradients, StackedParts) and self._step.is_ready():
            self._step(self._start_update(batch), gradients)
            self._look_ahead(batch)
        else:
            self._step.release()  # another step follows, which the stacks would not know of
            super().update(batch, gradients)

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
        self._step.release()  # else the correction's u_{t−1} would be of an earlier update
        return super().state()

    @override
    def restore(self, state: Mapping[str, dict[str, Any]]) -> None:
        self._step.release()
        super().restore(state)
