"""Functions of tensors as graphs of torch's compiler, one for each shape, shared by all trials.

On one thread products of matrices are our own operators of products.cpp, built by the C++ compiler
at their first use.
"""

import hashlib
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from trainer.base.compiler import compiler
from trainer.base.errors import BadInput, short

SOURCE = Path(__file__).with_name("products.cpp")
VECTORS = {
    "AVX512": ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}
"""What torch calls a processor → the compiler's flags for its vectors."""

Graph = Callable[..., Any]
"""Takes tensors of the shapes that it was made for; makes no gradients."""


def graph_of(
    function: Callable[..., Any],
    examples: Sequence[Tensor],
    num_threads: int,
    *,
    folds: bool = False,
) -> Graph:
    """Compiles a function of tensors that are shaped like `examples`.

    The function is first traced into a graph of torch's operations: what the compiler then looks up
    in its cache on disk depends on this graph alone, and on no object of Python. On one thread
    products of matrices are our own. With `folds` what depends on no argument, such as the angles
    of RoPE, is computed once, where the compiler would write it into every loop that reads it.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # imported late: it costs a second

    products = products_of(num_threads)
    traced = make_fx(function, products, tracing_mode="fake")(*examples)
    if folds:
        traced = _folded(traced)
    return compiled(traced, examples, num_threads)


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


@cache
def operators() -> Any:
    """`product` and `grouped` of products.cpp: products of fp32 on a CPU, in any layout, on one
    thread.

    They differ from torch's by rounding, and take half of the time on AMD's processors with
    AVX-512. Raises BadInput if they cannot be built.
    """
    torch.ops.load_library(_built())

    @torch.library.register_fake("pipegap::product")
    def _(a: Tensor, b: Tensor) -> Tensor:
        return a.new_empty((*a.shape[:-1], b.shape[-1]))

    @torch.library.register_fake("pipegap::grouped")
    def _(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
        groups = ends.shape if b.ndim == 2 else ()
        return a.new_empty((*groups, a.shape[0], b.shape[-1]))

    return torch.ops.pipegap


def products_of(num_threads: int) -> dict[Any, Callable[..., Any]]:
    """torch's products of matrices → what a graph on so many threads makes in their place.

    Those by groups are our own on any number of threads and in any dtype: torch's compiler takes
    them in bf16 alone, and there compiles one for each number of rows.
    """
    of_groups = {torch.ops.aten._grouped_mm.default: _grouped}
    if num_threads > 1:
        return of_groups
    by = operators().product

    def in_fp32(a: Tensor, b: Tensor) -> Any:
        return by(a, b) if a.dtype == torch.float32 else NotImplemented

    of_matrices = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)
    return {**of_groups, **dict.fromkeys(of_matrices, in_fp32)}


def _grouped(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Sums in fp32, as torch's does."""
    product: Tensor = operators().grouped(a.float(), b.float(), ends)
    return product.to(a.dtype)


def _built() -> Path:
    """The library, in the folder of torch's compiler, by a name that says all it was made from.

    torch's own loader of C++ would wait without end for the lock of a process that was killed.
    Raises BadInput if the compiler fails.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # imports the compiler

    torch_folder = Path(torch.__file__).parent
    flags = ["-O3", "-std=c++20", "-shared", "-fPIC", "-w"]
    flags += VECTORS.get(torch.backends.cpu.get_cpu_capability(), ())
    made_from = repr((SOURCE.read_text(), compiler(), flags, torch.__version__, torch_folder))
    digest = hashlib.sha256(made_from.encode()).hexdigest()[:16]
    library = Path(cache_dir(), f"pipegap-products-{digest}.so")
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(f".{os.getpid()}")
        paths = [f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}"]
        command = [compiler(), *flags, *paths, str(SOURCE), "-ltorch_cpu", "-lc10", "-o", str(part)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            allowed = f"needs a C++20 compiler; {compiler()} says: {short(built.stderr.strip())}"
            raise BadInput("compile", "update", allowed)
        part.rename(library)
    return library
