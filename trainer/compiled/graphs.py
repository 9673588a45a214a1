"""Functions of tensors as graphs of torch's compiler, one for each shape, shared by all trials."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

SAYS = logging.getLogger(__name__)
Graph = Callable[..., Any]
"""Takes tensors of the shapes that it was made for; makes no gradients."""


def graph_of(function: Callable[..., Any], examples: Sequence[Tensor], num_threads: int) -> Graph:
    """Compiles a function of tensors that are shaped like `examples`.

    The function is first traced into a graph of torch's operations: what the compiler then looks up
    in its cache on disk depends on this graph alone, and on no object of Python. What depends on no
    argument, such as the angles of RoPE, is computed once, where the compiler would write it into
    every loop that reads it.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # imported late: it costs a second

    traced = make_fx(function, tracing_mode="fake")(*examples)
    return compiled(_folded(traced), examples, num_threads)


def _folded(graph: GraphModule) -> GraphModule:
    from torch.fx.experimental.const_fold import split_const_subgraphs

    folded = split_const_subgraphs(graph, device_for_folded_attrs="cpu")
    folded.run_folding()
    return folded


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
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            SAYS.warning("waits for another process, which compiles the same graph")
            flock(lock, LOCK_EX)
        yield
