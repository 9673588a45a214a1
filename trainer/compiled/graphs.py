"""Functions of tensors as graphs of torch's compiler, one for each shape, shared by all trials."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

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
    kernel takes twice as long.
    """
    from torch._inductor import standalone_compile

    # It warns of each operation that costs its C++ a microsecond more to call.
    logging.getLogger("torch._inductor.ir").setLevel(logging.ERROR)
    options = {"config_patches": {"cpp.threads": num_threads, "cpp_wrapper": True}}
    return standalone_compile(
        graph, [*examples], dynamic_shapes="from_example_inputs", options=options
    )
