"""An update of a small trial on one core, against the same step written with transformers.

    python -m bench.step [scale=few_updates] [rounds=10] [compile=true|update]

The bf16 contender of transformers runs under autocast, as its users do on a CPU. With `compile=`,
steps that are compiled so run beside those that are not; transformers knows `true` alone.
"""

from collections.abc import Callable

import torch

from bench.timing import medians, options, table
from pipegap.trainer.base.build import build
from pipegap.trainer.base.resources import reproducible
from pipegap.trainer.models.llama import Llama
from tests.support.steps import ours, resolved, theirs, words_of_scale

AT_ONCE = 10
"""Updates of a call, as a trial makes many from one drain to the next."""
LATE = ["pipeline=pipedream_2bw", "correction=error_feedback"]


def matmuls(words: list[str]) -> Callable[[], None]:
    """Every matrix product of a step's linear layers and head, forward and backward, alone."""
    config = resolved(words)
    recipe: Llama = build(config["model"])
    dtype = getattr(torch, config["dtype"])
    module = recipe.stage(0, recipe.split(1, config["seq_len"]))
    shapes = [tuple(p.shape) for p in module.parameters() if p.ndim == 2]
    tokens = config["batch_size"] * config["seq_len"]
    work = [
        tuple(torch.randn(shape, dtype=dtype) for shape in ((tokens, i), (o, i), (tokens, o)))
        for o, i in shapes
    ]

    def multiply() -> None:
        for _ in range(AT_ONCE):
            for x, weight, gradient in work:
                # Outputs, gradients of the inputs, gradients of the weights.
                _ = x @ weight.T, gradient @ weight, gradient.T @ x

    return multiply


def _contenders(words: list[str], dtype: str) -> dict[str, Callable[[], None]]:
    return {
        f"transformers + torch.optim.AdamW, {dtype}": theirs(words, AT_ONCE),
        f"pipegap, AdamW, sync, {dtype}": ours(words, AT_ONCE),
        f"pipegap, AdamW, delay + EF, {dtype}": ours([*words, *LATE], AT_ONCE),
        f"pipegap, Muon, sync, {dtype}": ours([*words, "optimizer=muon"], AT_ONCE),
        f"pipegap, Muon, delay + EF, {dtype}": ours([*words, "optimizer=muon", *LATE], AT_ONCE),
        f"matrix products alone, {dtype}": matmuls(words),
    }


def _compiled(words: list[str], dtype: str) -> dict[str, Callable[[], None]]:
    compiled = [*words, "compile=true"]
    return {
        f"transformers + torch.optim.AdamW, compiled, {dtype}": theirs(compiled, AT_ONCE),
        f"pipegap, AdamW, sync, compiled, {dtype}": ours(compiled, AT_ONCE),
    }


def _whole_updates(words: list[str], dtype: str) -> dict[str, Callable[[], None]]:
    late = [*words, "compile=update", *LATE]
    return {
        f"pipegap, {name}, delay + EF, compiled update, {dtype}": ours(
            [*late, f"optimizer={name.lower()}"], AT_ONCE
        )
        for name in ("AdamW", "Muon", "SOAP")
    }


COMPILED = {"false": lambda words, dtype: {}, "true": _compiled, "update": _whole_updates}
"""Value of `compile=` → the contenders that it adds."""


def main() -> None:
    """Prints the table."""
    values = options(scale="few_updates", rounds=10, compile="false")
    words = words_of_scale(values.scale)
    contenders: dict[str, Callable[[], None]] = {}
    for dtype, name in (("float32", "fp32"), ("bfloat16", "bf16")):
        contenders |= _contenders([*words, f"dtype={dtype}"], name)
        contenders |= COMPILED[values.compile]([*words, f"dtype={dtype}"], name)
    with reproducible(seed=0, num_threads=1):
        seconds = medians(contenders, values.rounds)
    print(table(seconds, "transformers + torch.optim.AdamW, fp32", AT_ONCE * 1e-3, "ms per update"))


if __name__ == "__main__":
    main()
