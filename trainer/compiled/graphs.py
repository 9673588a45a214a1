"""Functions of tensors as graphs of torch's compiler, one for each shape, shared by all trials."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
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
    run: Graph = torch.no_grad()(compiled(traced, fullgraph=True, options=options))
    made_from = repr((traced.code, [tensor.shape for tensor in examples], options))
    with _compiling_alone(hashlib.sha256(made_from.encode()).hexdigest()[:16]):
        run(*examples)
    return run


@contextmanager
def _compiling_alone(graph: str) -> Iterator[None]:
    """Lets one process at a time compile a graph: others then find its files.

    Trials that start together want the same graphs. Who finds a mark that one was compiled on this
    machine does not wait for others that load it.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    mark = Path(cache_dir(), f"pipegap-graph-{graph}")
    mark.parent.mkdir(parents=True, exist_ok=True)
    with nullcontext() if mark.exists() else FileLock(mark.with_suffix(".lock")):
        yield
    mark.touch()
