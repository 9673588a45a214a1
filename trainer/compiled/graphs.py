"""Functions of tensors as graphs of torch's compiler, one for each shape, shared by all trials."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from trainer.compiled.products import products_of
from trainer.models.recipe import compiled

Graph = Callable[..., Any]
"""Takes tensors of the shapes that it was made for; makes no gradients."""


def graph_of(function: Callable[..., Any], examples: Sequence[Tensor], num_threads: int) -> Graph:
    """Compiles a function of tensors that are shaped like `examples`.

    The function is first traced into a graph of torch's operations: what the compiler then looks up
    in its cache on disk, and checks at each call, depends on this graph alone, and on no object of
    Python. The number of threads is said here because the compiler writes it into loops, and since
    products of matrices on one thread are our own.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # imported late: it costs a second

    products = products_of(num_threads)
    traced = make_fx(function, products, tracing_mode="fake")(*examples)
    options: dict[str, Any] = {"cpp.threads": num_threads}
    run: Graph = compiled(traced, fullgraph=True, options=options)
    return run
