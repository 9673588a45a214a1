"""Routes parameters to optimizers, by the module that they belong to. Vectors never decay."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Annotated, Any, Literal, Protocol, TypeVar, runtime_checkable

from annotated_types import Interval
from torch import nn
from torch.optim import Optimizer

from pipegap.trainer.base.flat import pieces

Kind = Literal["matrix", "embedding", "vector", "experts", "balance"]
"""Weight of a hidden nn.Linear; of an nn.Embedding or the head; of the rest (norms, biases, rows
and columns, convolutions). Optimizers get these three, a vector in one dimension. `experts` is a
stack of hidden matrices, `balance` biases of a router that have their own rule;
the modules `in_parts` of optimizers and stages take care of both.
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
    weights beside its own steps."""
    factory.__dict__["is_averaging"] = True
    return factory


def is_averaging(factory: Callable[..., Optimizer]) -> bool:
    """Whether the factory is declared so."""
    return getattr(factory, "is_averaging", False)


def keeps(
    num_buffers: int = OF_ADAM, others: int = OF_ADAM, squares: int = 0, in_step: float = 1.0
) -> Callable[[Factory], Factory]:
    """Declares what the optimizer has in memory, in fp32 tensors.

    It keeps `num_buffers` of the size of a hidden matrix, and `others` of the size of any other
    weight. Of `squares` there are so many for each side of a hidden matrix, as wide and as high as
    the side is long. In a step it makes `in_step` more for each hidden matrix, and drops them: as
    counted where most are alive, at the scale 2b.
    """

    def declare(factory: Factory) -> Factory:
        factory.__dict__.update(
            num_buffers=num_buffers, others=others, squares=squares, in_step=in_step
        )
        return factory

    return declare


def buffers(factory: Callable[..., Optimizer]) -> Callable[[Kind], int]:
    """Kind of a weight → how many fp32 tensors of its size the factory's optimizer keeps."""
    num_own, num_others = (getattr(factory, name, OF_ADAM) for name in ("num_buffers", "others"))
    return lambda kind: num_own if kind in MATRICES else num_others


def kept_entries(factory: Callable[..., Optimizer]) -> Callable[[Kind, Sequence[int]], int]:
    """Kind and shape of a weight → how many fp32 numbers the factory's optimizer keeps for it."""
    of_size, squares = buffers(factory), getattr(factory, "squares", 0)

    def entries(kind: Kind, shape: Sequence[int]) -> int:
        number = of_size(kind) * prod(shape)
        if kind in MATRICES:
            number += squares * prod(shape[:-2]) * sum(side**2 for side in shape[-2:])
        return number

    return entries


def made_in_step(factory: Callable[..., Optimizer], weights: Weights) -> int:
    """Return how many fp32 numbers a step of the factory's optimizer makes and drops.

    At least two for each entry of the largest weight, which torch's own steps make.
    """
    matrices = sum(prod(shape) for kind, shape in weights if kind in MATRICES)
    largest = max((prod(shape) for _, shape in weights), default=0)
    return round(max(getattr(factory, "in_step", 1.0) * matrices, 2 * largest))


def newton_schulz(rows: int, columns: int) -> float:
    """FLOPs by which five iterations of Newton-Schulz orthogonalise a matrix."""
    side, length = sorted((rows, columns))
    return 5 * (4 * side**2 * length + 2 * side**3)


def eigenbases(rows: int, columns: int) -> float:
    """FLOPs of a step in the eigenbases of both sides of a matrix, renewed every 10 steps.

    Four products with each basis or average. To renew a basis takes one product and a
    decomposition, which is as slow as seven.
    """
    cubes: float = rows**3 + columns**3
    return 8 * rows * columns * (rows + columns) + 1.6 * cubes


def multiplies(flops: Callable[[int, int], float]) -> Callable[[Factory], Factory]:
    """Declares the FLOPs of products in one step of the factory's optimizer, by rows and columns
    of a hidden matrix."""

    def declare(factory: Factory) -> Factory:
        factory.__dict__["flops"] = flops
        return factory

    return declare


def step_flops(factory: Callable[..., Optimizer], weights: Weights) -> float:
    """FLOPs of products in one step of the factory's optimizer; 0 if it declares none."""
    flops = getattr(factory, "flops", None)
    if flops is None:
        return 0.0
    matrices = [shape for kind, shape in weights if kind in MATRICES]
    return float(sum(prod(shape[:-2]) * flops(*shape[-2:]) for shape in matrices))


@runtime_checkable
class KnowsKinds(Protocol):
    """A module that knows the kinds of its own parameters."""

    def kind(self, name: str) -> Kind:
        """The kind of its parameter `name`."""


def kinds(module: nn.Module) -> dict[str, Kind]:
    """The kind of every parameter of `module`, by name; a tied weight is an embedding."""
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
