"""Forward and backward of a whole stage as graphs of torch's compiler, on stacked weights."""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel
from typing_extensions import override

from pipegap.trainer.models.decoder import Recipe, Split
from pipegap.trainer.models.layers import Output, cross_entropy
from pipegap.trainer.stages.backward import JoinedGradients
from pipegap.trainer.stages.versions import Versions, dtypes_of

# Weights of one shape that lie side by side in memory, so that a graph reads them as one stack;
# and the versions of such weights.


class Blocks:
    """Which tensors are stacked: those of one shape and one key, in one block [members, *shape].

    `keys` has a key for each tensor. What graphs compute with has one tensor per block; what the
    rest of a trial sees has one per weight, in the model's order, and the two share memory.
    """

    def __init__(self, shapes: Sequence[torch.Size], keys: Sequence[Hashable]) -> None:
        pairs = list(zip(shapes, keys, strict=True))
        self.members = [
            [i for i, pair in enumerate(pairs) if pair == block_key]
            for block_key in dict.fromkeys(pairs)
        ]
        """For each block, the numbers of the tensors in it."""
        end_to_end = torch.tensor([i for of in self.members for i in of])
        self.places = end_to_end.argsort()
        """For each tensor, its place in all blocks end to end."""
        self.shapes = [torch.Size([len(of), *shapes[of[0]]]) for of in self.members]
        """The shape of each block."""
        self._num_tensors = len(pairs)

    def zeros(self) -> list[Tensor]:
        """New blocks of zeros in fp32."""
        return [torch.zeros(shape) for shape in self.shapes]

    def tensors(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        """The parts of these blocks, one per tensor: views."""
        parts: dict[int, Tensor] = {}
        for numbers, block in zip(self.members, blocks, strict=True):
            parts.update(zip(numbers, block.unbind(), strict=True))
        return [parts[i] for i in range(self._num_tensors)]

    def stacked(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """New blocks with these values, one per tensor."""
        return [torch.stack([tensors[i] for i in numbers]) for numbers in self.members]


class StackedParts(JoinedGradients):
    """Gradients, one tensor per weight: the parts of `blocks`, views that are made when asked for.

    A `multiply` waits for who reads the parts, or for a graph that takes it with the blocks.
    """

    def __init__(self, layout: Blocks, blocks: list[Tensor]) -> None:
        self.blocks = blocks
        self._layout = layout
        self._factor: Tensor | None = None

    @override
    def __len__(self) -> int:
        return sum(map(len, self._layout.members))

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    @override
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        return self._parts[index]

    @override
    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._parts)

    @property
    def _parts(self) -> list[Tensor]:
        self._multiply_now()
        return self._views

    @cached_property
    def _views(self) -> list[Tensor]:
        return self._layout.tensors(self.blocks)

    @override
    def multiply(self, factor: Tensor) -> None:
        self._multiply_now()
        self._factor = factor

    def take_factor(self) -> Tensor:
        """The scalar by which the blocks have not been multiplied yet: the caller has to do it."""
        factor, self._factor = self._factor, None
        return torch.ones(()) if factor is None else factor

    @override
    def norms(self) -> Tensor:
        self._multiply_now()
        # A kernel call per block instead of one per part.
        rows = [
            torch.linalg.vector_norm(block.view(len(block), -1), dim=1) for block in self.blocks
        ]
        return torch.cat(rows).index_select(0, self._layout.places)

    def _multiply_now(self) -> None:
        if self._factor is not None:
            torch._foreach_mul_(self.blocks, self.take_factor())


class StackedVersions(Versions):
    """The versions of a stage's weights, in fp32; those of one block lie side by side.

    The weights of a block have one lag.
    """

    def __init__(self, module: nn.Module, lags: Sequence[int], layout: Blocks) -> None:
        super().__init__(module, lags, torch.float32)
        self._firsts = [numbers[0] for numbers in layout.members]
        by_slot = [
            layout.stacked([ring[slot % len(ring)].detach() for ring in self._rings])
            for slot in range(max(lags) + 1)
        ]
        self._stacks = [
            [blocks[b] for blocks in by_slot[: lags[first] + 1]]
            for b, first in enumerate(self._firsts)
        ]
        self.num_slots = [len(ring) for ring in self._stacks]
        """How many versions each block has."""
        parts = [layout.tensors(blocks) for blocks in by_slot]
        for i, ring in enumerate(self._rings):
            for slot, leaf in enumerate(ring):
                leaf.data = parts[slot][i]
        self._data = [[leaf.data for leaf in ring] for ring in self._rings]
        self._lay_masters(0)

    def read(self, versions: Sequence[int]) -> list[Tensor]:
        """The blocks with version `versions[i]` of weight i.

        Raises LookupError for a version that does not exist yet or is already overwritten.
        """
        blocks = []
        # The weights of a block have one lag, so the first one's version is that of all.
        for first, ring in zip(self._firsts, self._stacks, strict=True):
            slot, version = versions[first] % len(ring), versions[first]
            if self._held[first][slot] != version:
                at = f"{self.names[first]}: version {version}"
                raise LookupError(f"{at} is not there, only {sorted(self._held[first])}")
            blocks.append(ring[slot])
        return blocks

    def step(self) -> list[tuple[Tensor, Tensor]]:
        """The blocks of the newest version, and those for the next one, which becomes the newest.

        The two are one block where a weight has one version. The next version's values are the
        caller's to write.
        """
        pairs = [self._of_next(ring) for ring in self._stacks]
        self._lay_masters(self.newest + 1)
        self.close(())
        return pairs

    @override
    @torch.no_grad()
    def open(self) -> Sequence[nn.Parameter]:
        for old, new in (self._of_next(ring) for ring in self._stacks):
            if new is not old:
                new.copy_(old)
        self._lay_masters(self.newest + 1)
        return self.master

    @override
    def close(self, predicted: Sequence[Tensor]) -> None:
        self.newest += 1
        for slot_versions in self._held:
            slot_versions[self.newest % len(slot_versions)] = self.newest

    @override
    @torch.no_grad()
    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        self._restore_slots(state)
        self._lay_masters(self.newest)
        # Slots of a stage without a compiler may have been rounded to another dtype.
        torch._foreach_copy_(list(self.master), [saved["master"] for saved in state])

    def _of_next(self, ring: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """A block of the newest version, and where its next one will lie."""
        return ring[self.newest % len(ring)], ring[(self.newest + 1) % len(ring)]

    def _lay_masters(self, version: int) -> None:
        """Lays the master where this version lies."""
        for master, slots in zip(self.master, self._data, strict=True):
            if len(slots) > 1 or version == 0:  # else it lies there for good
                master.data = slots[version % len(slots)]


# Forward and backward of a whole stage, and of the loss behind the last one, as graphs of torch's
# compiler: one for each shape, shared by all trials.

SHORT = 128
"""Tokens of a sequence up to which two products and a softmax, fused, take half of the time of
torch's kernel of attention."""
SAYS = logging.getLogger(__name__)
Passes = Literal["loss", "evaluation", "forward", "backward"]
Graph = Callable[..., Any]
"""Takes tensors of the shapes that it was made for; makes no gradients."""


class StagePlace(NamedTuple):
    """A stage of a model: what decides its graphs, with the shapes of their inputs."""

    model: Recipe
    number: int
    split: Split

    def module(self) -> nn.Module:
        """The stage without weights."""
        with torch.device("meta"):
            return self.model.stage(self.number, self.split)


class Signature(NamedTuple):
    """The shapes that a stage's graphs are made for, the dtype of its input, and the one in which
    it reads its weights."""

    members: tuple[tuple[int, ...], ...]
    x: torch.Size
    input: torch.dtype
    dtype: torch.dtype
    num_threads: int


class AwaitsTargets(NamedTuple):
    """What a last stage hands to the loss: a graph that ends in the loss, without its targets."""

    loss: Callable[[Tensor], Tensor]


def loss_of(output: Output | AwaitsTargets, targets: Tensor) -> Tensor:
    """The mean loss of a last stage's output; of a compiled one it comes from the stage's graph."""
    if isinstance(output, AwaitsTargets):
        return output.loss(targets)
    return cross_entropy(output, targets)


class _Stage:
    """A stage as functions of its blocks, which are in fp32."""

    def __init__(self, place: StagePlace, signature: Signature) -> None:
        self._module = place.module()
        weights_by_name = dict(self._module.named_parameters())
        self._names, shapes = (
            list(weights_by_name),
            [weight.shape for weight in weights_by_name.values()],
        )
        self._dtypes = dtypes_of(self._module, signature.dtype)
        numbers = {i: b for b, members in enumerate(signature.members) for i in members}
        self._blocks = Blocks(shapes, [numbers[i] for i in range(len(shapes))])
        self.signature = signature

    def forward(self, x: Tensor, *blocks: Tensor) -> Tensor:
        parts = zip(self._blocks.tensors(blocks), self._dtypes, strict=True)
        weights = [part.to(dtype) for part, dtype in parts]
        weights_by_name = dict(zip(self._names, weights, strict=True))
        return functional_call(self._module, weights_by_name, (x,))

    def loss(self, x: Tensor, targets: Tensor, *blocks: Tensor) -> list[Tensor | None]:
        inputs = self._inputs(x, blocks)
        with torch.enable_grad():
            loss = cross_entropy(self.forward(*inputs), targets)
            return [loss.detach(), *self._gradients(loss, None, inputs)]

    def evaluation(self, x: Tensor, targets: Tensor, *blocks: Tensor) -> Tensor:
        return cross_entropy(self.forward(x, *blocks), targets)

    def backward(self, x: Tensor, gradient: Tensor, *blocks: Tensor) -> list[Tensor | None]:
        inputs = self._inputs(x, blocks)
        with torch.enable_grad():
            return self._gradients(self.forward(*inputs), gradient, inputs)

    def _inputs(self, x: Tensor, blocks: Sequence[Tensor]) -> list[Tensor]:
        # Tokens are whole numbers, which have no gradient.
        return [t.detach().requires_grad_(t.is_floating_point()) for t in (x, *blocks)]

    def _gradients(
        self, output: Tensor, gradient: Tensor | None, inputs: list[Tensor]
    ) -> list[Tensor | None]:
        differentiable = [t for t in inputs if t.requires_grad]
        # None stands for the gradient of tokens, so that each input has its place.
        gradients: list[Tensor | None] = [*torch.autograd.grad(output, differentiable, gradient)]
        return gradients if len(differentiable) == len(inputs) else [None, *gradients]

    def examples(self, *more: Tensor) -> list[Tensor]:
        x = torch.zeros(self.signature.x, dtype=self.signature.input)
        return [x, *more, *self._blocks.zeros()]

    def output(self) -> Tensor:
        """An example of the output of a stage that is not the last one."""
        with torch.no_grad():
            return torch.zeros_like(self.forward(*self.examples()))


@cache
def graph_of_stage(place: StagePlace, signature: Signature, kind: Passes) -> Graph:
    """The graph of some passes of a stage.

    loss: (x, targets, *blocks) → loss, gradient of x or None, gradients of the blocks.
    evaluation: (x, targets, *blocks) → loss. forward: (x, *blocks) → output.
    backward: (x, gradient of the output, *blocks) → gradient of x or None, gradients of the blocks;
    it computes the forward once more, as a graph keeps no activations for another one.
    """
    stage, targets = _Stage(place, signature), torch.zeros(signature.x[:2], dtype=torch.long)
    makers: dict[Passes, Callable[[], tuple[Callable[..., Any], list[Tensor]]]] = {
        "loss": lambda: (stage.loss, stage.examples(targets)),
        "evaluation": lambda: (stage.evaluation, stage.examples(targets)),
        "forward": lambda: (stage.forward, stage.examples()),
        "backward": lambda: (stage.backward, stage.examples(stage.output())),
    }
    function, examples = makers[kind]()
    with _attention(signature):
        return graph_of(function, examples, signature.num_threads)


def _attention(signature: Signature) -> AbstractContextManager[None]:
    """Within it, attention is traced as the products that pay off."""
    is_short = signature.x[1] <= SHORT and signature.num_threads == 1
    return sdpa_kernel(SDPBackend.MATH) if is_short else nullcontext()


def graph_of(function: Callable[..., Any], examples: Sequence[Tensor], num_threads: int) -> Graph:
    """Compiles a function of tensors that are shaped like `examples`.

    The function is first traced into a graph of torch's operations: what the compiler then looks up
    in its cache on disk depends on this graph alone, and on no object of Python. What depends on no
    argument, such as the angles of RoPE, is computed once, where the compiler would write it into
    every loop that reads it.
    """
    # Imported late: they cost a second.
    from torch.fx.experimental.const_fold import split_const_subgraphs
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(function, tracing_mode="fake")(*examples)
    folded = split_const_subgraphs(traced, device_for_folded_attrs="cpu")
    folded.run_folding()
    return compiled(folded, examples, num_threads)


def compiled(graph: GraphModule, examples: Sequence[Tensor], num_threads: int) -> Graph:
    """Compiles a graph for this number of threads, which the compiler writes into loops.

    Without torch.compile, whose checks of each call would take a tenth of a small update. All
    kernels of a graph, and the calls of them, are one file of C++: to compile one file for each
    kernel takes twice as long. Of several processes one compiles a graph, and the others wait for
    it. That the compiler knows the vectors of this processor is taken for granted: C++20, which
    torch needs, is younger, and to try it takes 7 s.
    """
    from torch._inductor import standalone_compile

    # It warns of each operation that costs its C++ a microsecond more to call.
    logging.getLogger("torch._inductor.ir").setLevel(logging.ERROR)
    patches = {"cpp.threads": num_threads, "cpp_wrapper": True, "cpp.vec_isa_ok": True}
    shapes = [(example.shape, example.dtype) for example in examples]
    with _alone(f"{num_threads} {shapes} {graph.code}"):
        return standalone_compile(
            graph,
            [*examples],
            dynamic_shapes="from_example_inputs",
            options={"config_patches": patches},
        )


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """Lets one process at a time compile `what`, of all that share the compiler's folder."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = Path(cache_dir(), "locks")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"pipegap-{sha256(what.encode()).hexdigest()}").open("w") as lock:
        # The lock ends with the file, so also with a process that is killed.
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            SAYS.warning("waits for another process, which compiles the same graph")
            flock(lock, LOCK_EX)
        yield
