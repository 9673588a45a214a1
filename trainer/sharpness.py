"""Trains the synchronous run of a config and measures its sharpness on the way, in the norm of the
optimizer's preconditioner P; writes nothing."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from trainer.base.build import Node, published
from trainer.base.errors import BadInput
from trainer.base.randomness import stream_seed
from trainer.base.resources import reproducible, require_device
from trainer.config.plan import plan_trial
from trainer.executors.gradients import Diverged, Update
from trainer.models.loss import cross_entropy
from trainer.parts import build_emulated, build_parts, empty_stage

CLIPPED = 20
"""Updates over which the factor of the clip is averaged: what a second moment of β₂ = 0.95 sees."""
Config = Mapping[str, Any]
TOLERANCE = 1e-3
"""Relative tolerance of the eigenvalue: three digits."""
Vectors = Sequence[Tensor]
"""One tensor per weight, of its shape."""
Loss = Callable[[Tensor, Tensor], Tensor]
Product = Callable[[Vectors], list[Tensor]]
_HERE = "trainer.optimizers"
UPDATES_BEFORE_ONE: Mapping[str, int] = {
    **{f"{_HERE}.{name}": 0 for name in ("adamw", "nadamw", "adan", "ademamix", "mars")},
    f"{_HERE}.soap": 1,
}
"""Published address of an optimizer that is covered → how many of its first calls do not count in
the bias correction of v."""


class Sharpness(NamedTuple):
    """Where a synchronous run stands after `num_updates` updates."""

    num_updates: int
    train_loss: float
    lr: float
    """Learning rate of the last update."""
    largest: float
    """Eigenvalue of P⁻¹ H, times the mean factor by which the clip scaled the last gradients."""

    @property
    def k(self) -> float:
        """Learning rate times curvature, as in analysis/theory."""
        return self.lr * self.largest


def measured(config: Config, every: int, num_tokens: int) -> Iterator[Sharpness]:
    """Yields the sharpness after every `every` updates and after the last, until it diverges.

    The loss is that of `num_tokens` tokens of the validation split. The config is that of a
    synchronous trial of one stage. Raises BadInput for an optimizer whose preconditioner is not
    covered, and where `run_trial` does.
    """
    plan = plan_trial(config)
    device = require_device(config["device"])
    seed = stream_seed(config["seed"], "optimizer")
    with reproducible(seed, config["num_threads"], config["deterministic"]):
        parts = build_parts(config, plan.num_updates)
        executor = build_emulated(config, parts, device)
        [stage], model = executor.stages, parts.model
        seen: deque[Update] = deque(maxlen=CLIPPED)
        for first in range(0, plan.num_updates, every):
            last = min(first + every, plan.num_updates)
            try:
                executor.run(first, last, seen.append)
            except Diverged:
                return
            named = dict(zip(stage.versions.names, stage.versions.master, strict=True))
            weights = [*named.values()]
            batches = parts.validation.batches(config["eval_batch_size"], num_tokens)
            product = hessian_product(
                empty_stage(model, 0, model.split(1, config["seq_len"])).to_empty(device=device),
                named,
                cross_entropy,
                (batch.to(device) for batch in batches),
            )
            half = inverse_root(config["optimizer"], stage.optimizer, weights, last)
            shapes = [weight.shape for weight in weights]
            largest = sharpness(product, half, shapes, config["seed"]) * _clipped(config, seen)
            yield Sharpness(last, seen[-1].loss, seen[-1].lr, largest)


def _clipped(config: Config, seen: deque[Update]) -> float:
    """The mean factor by which the clip scaled gradients."""
    norm = config["clip_norm"]
    if norm is None:
        return 1.0
    return sum(min(1.0, norm / update.grad_norm) for update in seen) / len(seen)


def hessian_product(
    module: nn.Module, weights: Mapping[str, Tensor], loss: Loss, batches: Iterable[Tensor]
) -> Product:
    """Returns v → H v for the mean loss of `module` at `weights` over `batches`.

    A batch is [windows, seq_len + 1], and all count alike. The gradients are kept, so every batch
    costs memory.
    """
    leaves = {name: w.detach().clone().requires_grad_(True) for name, w in weights.items()}
    flat = list(leaves.values())
    gradients = []
    # Only this kernel of attention has a second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        for batch in batches:
            value = loss(functional_call(module, leaves, (batch[:, :-1],)), batch[:, 1:])
            gradients.append(torch.autograd.grad(value, flat, create_graph=True))

    def product(vectors: Vectors) -> list[Tensor]:
        total = [torch.zeros_like(w) for w in flat]
        for gradient in gradients:
            products = torch.autograd.grad(gradient, flat, vectors, retain_graph=True)
            torch._foreach_add_(total, products)
        return [part / len(gradients) for part in total]

    return product


def sharpness(product: Product, half: Product, shapes: Sequence[torch.Size], seed: int) -> float:
    """Returns the largest eigenvalue of S H S, by Lanczos, which is also that of P⁻¹ H.

    `product` is H and `half` the symmetric S = P^(−1/2). `seed` draws the starting vector.
    """
    sizes = [shape.numel() for shape in shapes]

    def parts(x: NDArray[np.float64]) -> list[Tensor]:
        flat = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
        pieces = zip(flat.split(sizes), shapes, strict=True)
        return [piece.reshape(shape) for piece, shape in pieces]

    def apply(x: NDArray[np.float64]) -> NDArray[np.float64]:
        image = half(product(half(parts(x))))
        return torch.cat([part.flatten() for part in image]).double().numpy()

    size = sum(sizes)
    start = np.random.default_rng(seed).standard_normal(size)
    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    [largest] = eigsh(operator, k=1, which="LA", v0=start, tol=TOLERANCE, return_eigenvectors=False)
    return float(largest)


def require_covered(node: Node) -> None:
    """Raises BadInput for an optimizer without such a preconditioner."""
    if (address := published(node["_target_"])) not in UPDATES_BEFORE_ONE:
        known = ", ".join(at.rpartition(".")[2] for at in UPDATES_BEFORE_ONE)
        name = address.rpartition(".")[2]
        allowed = f"must divide by the root of a mean of squared gradients, as {known} do"
        raise BadInput("optimizer", name, allowed)


def inverse_root(
    node: Node, optimizer: Optimizer, weights: Sequence[nn.Parameter], num_updates: int
) -> Callable[[Vectors], list[Tensor]]:
    """Returns the symmetric map x → P^(−1/2) x after `num_updates` of the optimizer.

    `node` has the optimizer's settings. Raises BadInput where `require_covered` does.
    """
    require_covered(node)
    group_of = {w: group for group in optimizer.param_groups for w in group["params"]}
    steps = num_updates - UPDATES_BEFORE_ONE[published(node["_target_"])]
    maps = [
        _of_weight(
            optimizer.state[weight],
            _decay(node, group_of[weight], weight),
            group_of[weight]["eps"],
            steps if "Q" in optimizer.state[weight] else num_updates,
        )
        for weight in weights
    ]
    return lambda x: [map_(part) for map_, part in zip(maps, x, strict=True)]


def _decay(node: Node, group: Mapping[str, Any], weight: Tensor) -> float:
    """Returns β₂ of a weight; MARS has another β₂ for vectors."""
    if "betas_1d" in group and weight.ndim < 2:
        return float(group["betas_1d"][1])
    return float(node["variance_decay"])


def _of_weight(
    state: Mapping[str, Any], decay: float, eps: float, steps: int
) -> Callable[[Tensor], Tensor]:
    second = state["exp_avg_sq"] / (1 - decay**steps)
    scale = (second.sqrt() + eps).rsqrt()
    bases = [basis for basis in state.get("Q", []) if len(basis)]
    if not bases:
        return lambda x: scale * x
    left, right = bases
    return lambda x: left @ (scale * (left.T @ x @ right)) @ right.T
