"""Routes parameters to optimizers by their module, and what optimizers of hidden matrices are made
of.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from itertools import islice
from math import prod
from typing import Annotated, Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.base.flat import pieces
from pipegap.trainer.base.ranges import NonNegative, Positive

Kind = Literal["matrix", "embedding", "vector", "experts", "balance"]
"""`matrix` is the weight of a hidden nn.Linear, `embedding` that of an nn.Embedding or the head,
`vector` any other weight (norms, biases, matrices of one row or column, convolutions), which never
decays. Optimizers get these three, a vector in one dimension. `experts` is a stack of hidden
matrices, `balance` biases of a router with a rule of their own: `OptimizerInParts` steps both.
"""

VECTOR: Kind = "vector"
EXPERTS: Kind = "experts"
BALANCE: Kind = "balance"
MATRICES: tuple[Kind, ...] = ("matrix", EXPERTS)
"""Kinds of weights that are hidden matrices, one or a stack of them."""

KINDS: Mapping[Kind, tuple[int, ...]] = {"matrix": (2, 2), "embedding": (2, 2), VECTOR: (2,)}
"""The kinds of weights that every optimizer gets, each with a shape that it may have."""

Parameters = Sequence[tuple[Kind, nn.Parameter]]
Weights = Sequence[tuple[Kind, Sequence[int]]]
"""Kind and shape of each weight; a stack of matrices is one weight."""
Make = Callable[[Parameters], Optimizer]
Group = dict[str, Any]
Decay = Annotated[float, Interval(ge=0, lt=1)]
"""Decay of an average: the share of the old value that is kept. Larger is a longer memory."""

HEAD = "lm_head"
OF_ADAM = 2
"""fp32 tensors of a weight's size that Adam keeps."""
Factory = TypeVar("Factory", bound=Callable[..., Optimizer])


def entrywise(factory: Factory) -> Factory:
    """Declares that the factory's optimizer steps every entry of a weight by itself.

    It may then be handed a stack of matrices as one matrix, which saves time.
    """
    factory.__dict__["is_entrywise"] = True
    return factory


def is_entrywise(factory: Callable[..., Optimizer]) -> bool:
    """Whether the factory is declared so."""
    return getattr(factory, "is_entrywise", False)


def averaging(factory: Factory) -> Factory:
    """Declares that the factory's optimizer averages weights, not updates: no correction may move
    weights between its steps."""
    factory.__dict__["is_averaging"] = True
    return factory


def is_averaging(factory: Callable[..., Optimizer]) -> bool:
    """Whether the factory is declared so."""
    return getattr(factory, "is_averaging", False)


def keeps(
    num_buffers: int = OF_ADAM, num_of_others: int = OF_ADAM, squares: int = 0, in_step: float = 1.0
) -> Callable[[Factory], Factory]:
    """Declares what the optimizer has in memory, in fp32 tensors.

    Between steps it keeps `num_buffers` of the size of each hidden matrix and `num_of_others` of
    the size of each other weight, and for a hidden matrix [rows, columns] `squares` times a [rows,
    rows] and a [columns, columns]. A step makes `in_step` more of the size of each hidden matrix,
    and drops them: the number at the step's peak, measured at the scale 2b.
    """

    def declare(factory: Factory) -> Factory:
        factory.__dict__.update(
            num_buffers=num_buffers, num_of_others=num_of_others, squares=squares, in_step=in_step
        )
        return factory

    return declare


def buffers(factory: Callable[..., Optimizer]) -> Callable[[Kind], int]:
    """Kind of a weight → how many fp32 tensors of its size the factory's optimizer keeps."""
    declared_names = ("num_buffers", "num_of_others")
    of_matrix, of_weight = (getattr(factory, name, OF_ADAM) for name in declared_names)
    return lambda kind: of_matrix if kind in MATRICES else of_weight


def kept_entries(factory: Callable[..., Optimizer]) -> Callable[[Kind, Sequence[int]], int]:
    """Kind and shape of a weight → how many fp32 numbers the factory's optimizer keeps for it."""
    of_size, squares = buffers(factory), getattr(factory, "squares", 0)

    def entries(kind: Kind, shape: Sequence[int]) -> int:
        number = of_size(kind) * prod(shape)
        if kind in MATRICES:  # [rows, columns], or a stack of them: [experts, rows, columns]
            number += squares * prod(shape[:-2]) * sum(side**2 for side in shape[-2:])
        return number

    return entries


def made_in_step(factory: Callable[..., Optimizer], weights: Weights) -> int:
    """Returns how many fp32 numbers a step of the factory's optimizer makes and drops.

    They are at least two for each entry of the largest weight, as in torch's own steps.
    """
    matrices = sum(prod(shape) for kind, shape in weights if kind in MATRICES)
    largest = max((prod(shape) for _, shape in weights), default=0)
    return round(max(getattr(factory, "in_step", 1.0) * matrices, 2 * largest))


def newton_schulz(rows: int, columns: int) -> float:
    """FLOPs by which five iterations of Newton-Schulz orthogonalise a matrix."""
    side, length = sorted((rows, columns))
    # A step is X Xᵀ, its square, and the product of both with X; a product has 2 FLOPs per term.
    return 5 * (4 * side**2 * length + 2 * side**3)


def eigenbases(rows: int, columns: int) -> float:
    """FLOPs of a step in the eigenbases of both sides of a matrix, renewed every 10 steps.

    There are four products with each basis or average. To renew a basis takes one product and a
    decomposition, which is as slow as seven.
    """
    cubes: float = rows**3 + columns**3
    # A product with a side of n has 2 · n · rows · columns FLOPs; 1.6 is (1 + 7) · 2 / 10.
    return 8 * rows * columns * (rows + columns) + 1.6 * cubes


def multiplies(
    flops: Callable[[int, int], float], dtype: str | None = None
) -> Callable[[Factory], Factory]:
    """Declares the FLOPs of products in one step of the factory's optimizer, by rows and columns
    of a hidden matrix, and their dtype, such as `bfloat16`; None: that of the trial."""

    def declare(factory: Factory) -> Factory:
        factory.__dict__.update(flops=flops, step_dtype=dtype)
        return factory

    return declare


def step_flops(factory: Callable[..., Optimizer], weights: Weights) -> float:
    """FLOPs of products in one step of the factory's optimizer; 0 if it declares none."""
    flops = getattr(factory, "flops", None)
    if flops is None:
        return 0.0
    matrices = [shape for kind, shape in weights if kind in MATRICES]
    return float(sum(prod(shape[:-2]) * flops(*shape[-2:]) for shape in matrices))


def step_dtype(factory: Callable[..., Optimizer]) -> str | None:
    """The dtype of these products; None: that of the trial."""
    return getattr(factory, "step_dtype", None)


@runtime_checkable
class KnowsKinds(Protocol):
    """A module that knows the kinds of its own parameters."""

    def kind(self, name: str) -> Kind:
        """The kind of its parameter `name`."""


def kinds(module: nn.Module) -> dict[str, Kind]:
    """The kind of every parameter of `module`, by name; a tied weight is an embedding."""
    # Below, `named_modules` meets a tied weight twice; `named_parameters` of the module names it
    # once, after the first module that holds it: the embedding.
    by_name: dict[str, Kind] = {}
    for path, submodule in module.named_modules():
        for name, weight in submodule.named_parameters(path, recurse=False):
            by_name[name] = _kind(submodule, path, name, weight)
    return {name: by_name[name] for name, _ in module.named_parameters()}


def _kind(submodule: nn.Module, path: str, name: str, weight: nn.Parameter) -> Kind:
    if isinstance(submodule, KnowsKinds):
        return submodule.kind(name.rpartition(".")[2])
    if isinstance(submodule, nn.Embedding) or path.endswith(HEAD):
        return "embedding"
    is_weight = isinstance(submodule, nn.Linear) and name.endswith("weight")
    return "matrix" if is_weight and 1 not in weight.shape else "vector"


def grouped(parameters: Parameters, **options: Group) -> list[Group]:
    """One parameter group per kind that has parameters, with that kind's `options`.

    Raises KeyError for a parameter whose kind has no options, so that the groups are a partition.
    """
    members: dict[str, list[nn.Parameter]] = {kind: [] for kind in options}
    for kind, parameter in parameters:
        members[kind].append(parameter)
    return [{"params": members[kind], **options[kind]} for kind in options if members[kind]]


def decaying(parameters: Parameters, weight_decay: float) -> list[Group]:
    """Parameter groups of one optimizer for all kinds of weight; only vectors do not decay.

    On a GPU torch steps a group by foreach calls, whose temporary tensors are as large as the
    group: there, groups are `pieces`.
    """
    decay, no_decay = {"weight_decay": weight_decay}, {"weight_decay": 0.0}
    groups = grouped(parameters, matrix=decay, embedding=decay, vector=no_decay)
    if not any(weight.is_cuda for _, weight in parameters):
        return groups
    return [{**group, "params": piece} for group in groups for piece in pieces(group["params"])]


def split(parameters: Parameters) -> tuple[Parameters, Parameters]:
    """Returns the hidden matrices, and the rest."""
    matrices = [(kind, parameter) for kind, parameter in parameters if kind == "matrix"]
    return matrices, [(kind, parameter) for kind, parameter in parameters if kind != "matrix"]


# What optimizers of hidden matrices are made of: AdamW beside them, and batches of one shape.

Within = Callable[[list[Group]], AbstractContextManager[Any]]
"""Groups of an optimizer → a context of its step."""


class Chained(Optimizer):
    """One optimizer made of `parts`, optimizers of disjoint weights, with their groups and state.

    A step equals steps of the parts one after the other, bit for bit, in the context that `within`
    makes of the groups. Checkpoints do not hold what a part keeps outside of `state` and
    `param_groups`.
    """

    def __init__(self, parts: Iterable[Optimizer], within: Within = nullcontext) -> None:
        self.parts, self._within = list(parts), within
        self.surrounds = within is not nullcontext
        """Whether a step does more than its parts' steps."""
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._link()

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        with self._within(self.param_groups):
            for part in self.parts:
                part.step()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # load_state_dict ends here, with new groups and state
        self._link()

    def _link(self) -> None:
        groups = iter(self.param_groups)
        for part in self.parts:
            # The same objects, not copies: a scheduler writes to our groups, and parts read them.
            part.param_groups = list(islice(groups, len(part.param_groups)))
            part.state = self.state
            if isinstance(part, Chained):
                part._link()


def moved_by(
    optimizer: Optimizer, move: Callable[[Group, list[Tensor], list[Tensor]], None], **options: Any
) -> Chained:
    """Lets `move` apply the updates of an optimizer, whose own decay is off.

    `move(group, weights, updates)` steps the weights of a group that have a gradient; `updates` are
    what would be subtracted, and may be overwritten. The optimizer's groups get these `options`.
    """
    for group in optimizer.param_groups:
        group.update(options, weight_decay=0.0)
    return Chained([optimizer], partial(_moving, move))


@contextmanager
def _moving(move: Callable[..., None], groups: Sequence[Group]) -> Iterator[None]:
    """Has an optimizer step from weights of zero: it leaves minus the update, without rounding."""
    steps = []
    for group in groups:
        if weights := [p for p in group["params"] if p.grad is not None]:
            steps.append((group, weights, [p.detach().clone() for p in weights]))
            torch._foreach_zero_(weights)
    yield
    for group, weights, saved in steps:
        updates = list(torch._foreach_neg(weights))
        torch._foreach_copy_(weights, saved)
        move(group, weights, updates)


def decay_cautiously(weights: Sequence[Tensor], updates: Sequence[Tensor], share: float) -> None:
    """Cautious decay (arXiv 2510.12402): an entry decays unless its update would enlarge it.

    W ← W − share · W in place, where W · update ≥ 0; the update is what will be subtracted.
    """
    for weight, update in zip(weights, updates, strict=True):
        weight.sub_(weight * (weight * update >= 0), alpha=share)


def auxiliary(
    lr: Positive,
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
) -> Group:
    """AdamW's options for all but hidden matrices; the rate is `auxiliary_lr`, else `lr`."""
    rate = lr if auxiliary_lr is None else auxiliary_lr
    return {"lr": rate, "betas": (auxiliary_momentum, variance_decay), "eps": eps}


def matrices_and_rest(
    parameters: Parameters,
    make: Callable[[list[Group]], Optimizer],
    adamw: Mapping[str, Any],
    weight_decay: float,
) -> Optimizer:
    """The optimizer that `make` returns for the hidden matrices, with torch's AdamW for the rest.

    Either of the two may have no weights.
    """
    matrices, other_parameters = split(parameters)
    parts: list[Optimizer] = []
    if matrices:  # torch's optimizers refuse an empty list
        parts.append(make(grouped(matrices, matrix={"weight_decay": weight_decay})))
    if other_parameters:
        parts.append(torch.optim.AdamW(decaying(other_parameters, weight_decay), **adamw))
    return Chained(parts)


def beside_adamw(make: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    """Turns an optimizer of hidden matrices into one of all weights, with AdamW for the rest.

    `make(groups, *, lr, …)` returns the optimizer of the matrices. The returned factory has the
    keywords of both halves; one that both have, such as eps, is one key for both.
    """
    groups, *matrix_keywords = signature(make).parameters
    of_adamw = signature(auxiliary).parameters
    decay = Parameter("weight_decay", Parameter.KEYWORD_ONLY, annotation=NonNegative)

    @wraps(make)
    def factory(parameters: Parameters, **options: Any) -> Optimizer:
        adamw = auxiliary(**{key: options[key] for key in of_adamw})
        make_matrices = partial(make, **{key: options[key] for key in matrix_keywords})
        return matrices_and_rest(parameters, make_matrices, adamw, options["weight_decay"])

    all_parameters = {**signature(make).parameters, **of_adamw, decay.name: decay}
    all_parameters.pop(groups)
    keywords = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in all_parameters.values()]
    first = Parameter("parameters", Parameter.POSITIONAL_ONLY)
    # The schema of a choice is its target's signature (`trainer.config.schema`).
    vars(factory)["__signature__"] = Signature([first, *keywords])
    factory.__annotations__ = {keyword.name: keyword.annotation for keyword in keywords}
    return factory


class MatrixOptimizer(Optimizer):
    """Moves batches of matrices of one shape; each matrix has a state of named tensors."""

    def __init__(self, groups: list[Group], **defaults: float | bool | str | None) -> None:
        super().__init__(groups, dict(defaults))

    @abstractmethod
    def start(
        self,
        matrix: Tensor,  # [rows, columns]
    ) -> dict[str, Tensor]:
        """The state of a matrix before its first update."""

    @abstractmethod
    def update(
        self,
        group: Group,
        gradient: Tensor,  # [matrices, rows, columns]
        state: dict[str, Tensor],  # [matrices, …], each as `start` made it
    ) -> Tensor:
        """Returns the update of a batch of matrices, of the gradient's shape; changes `state`."""

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[weight.shape].append(weight)
            for weights in by_shape.values():
                self._step(group, weights)

    def _step(self, group: Group, weights: list[Tensor]) -> None:
        for weight in weights:
            if not self.state[weight]:
                self.state[weight].update(self.start(weight))
        states = [self.state[weight] for weight in weights]
        # Stacked copies, [matrices, …]: `update` changes them, and they are copied back below.
        batch = {key: torch.stack([state[key] for state in states]) for key in states[0]}
        gradient = torch.stack([w.grad for w in weights if w.grad is not None])
        update = self.update(group, gradient, {**batch, **self.seen(weights)})
        for key, values in batch.items():
            torch._foreach_copy_([state[key] for state in states], list(values.unbind()))
        self.move(group, weights, update)

    def seen(self, weights: list[Tensor]) -> dict[str, Tensor]:
        """Further tensors that `update` gets with the state of these matrices of one shape."""
        return {}

    def move(self, group: Group, weights: list[Tensor], update: Tensor) -> None:
        """W ← (1 − lr · weight_decay) W − lr · update, for matrices of one shape."""
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(update.unbind()), alpha=-group["lr"])
