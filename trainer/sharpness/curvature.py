"""The largest eigenvalue of a preconditioned Hessian, by Lanczos on Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.sharpness.preconditioner import Vectors

TOLERANCE = 1e-3
"""Of the eigenvalue, relative: three digits."""
Loss = Callable[[Tensor, Tensor], Tensor]
Product = Callable[[Vectors], list[Tensor]]


def hessian_product(
    module: nn.Module, weights: Mapping[str, Tensor], loss: Loss, batches: Iterable[Tensor]
) -> Product:
    """v → H v, H of the mean loss of `module` at `weights` over `batches`, [windows, seq_len + 1].

    All batches count alike. The gradients are kept, so this costs memory for each batch.
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
            found = torch.autograd.grad(gradient, flat, vectors, retain_graph=True)
            torch._foreach_add_(total, found)
        return [part / len(gradients) for part in total]

    return product


def sharpness(product: Product, half: Product, shapes: Sequence[torch.Size], seed: int) -> float:
    """The largest eigenvalue of S H S; `product` is H and `half` the symmetric S = P^(−1/2).

    It is also that of P⁻¹ H. `seed` draws the vector from which Lanczos starts.
    """
    sizes = [shape.numel() for shape in shapes]

    def parts(x: NDArray[np.float64]) -> list[Tensor]:
        flat = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
        pieces = zip(flat.split(sizes), shapes, strict=True)
        return [piece.reshape(shape) for piece, shape in pieces]

    def apply(x: NDArray[np.float64]) -> NDArray[np.float64]:
        found = half(product(half(parts(x))))
        return torch.cat([part.flatten() for part in found]).double().numpy()

    size = sum(sizes)
    start = np.random.default_rng(seed).standard_normal(size)
    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    [largest] = eigsh(operator, k=1, which="LA", v0=start, tol=TOLERANCE, return_eigenvectors=False)
    return float(largest)
