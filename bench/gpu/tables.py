"""What was measured as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

PEER = "transformers, compiled"
"""The step that ours are compared with."""


def page(measured: Mapping[str, Any]) -> str:
    """All tables of what `bench.gpu` measured; a part that was not measured has none."""
    tables: Mapping[str, Callable[[Any], str]] = {
        "limits": _limits,
        "steps": _steps,
        "updates": _updates,
        "evaluation": _evaluation,
        "trials": _trials,
    }
    parts = [table(measured[part]) for part, table in tables.items() if part in measured]
    versions = f"torch {measured['torch']}, CUDA {measured['cuda']}"
    where = f"{measured['device']}, {versions}; {measured['scale']}"
    return "\n\n".join([where, *parts]) + "\n"


def _limits(ceilings: Mapping[str, float]) -> str:
    return (
        f"A product of matrices in bf16: {ceilings['flops_per_second'] / 1e12:.0f} TFLOP/s; "
        f"a copy: {ceilings['bytes_per_second'] / 1e12:.2f} TB/s, read and written bytes counted."
    )


def _steps(rows: Sequence[Mapping[str, Any]]) -> str:
    peer = next(row["seconds"] for row in rows if row["step"] == PEER)
    head = (
        *("", "ms per update", "least … most", "of it kernels, ms", "tokens/s"),
        *("of the product's FLOP/s", f"{PEER} / this", "peak, GB", "first update, s"),
    )
    return _table(
        head,
        [
            (
                row["step"],
                f"{1e3 * row['seconds']:.0f}",
                f"{1e3 * row['least']:.0f} … {1e3 * row['most']:.0f}",
                f"{1e3 * row['busy']:.0f}",
                f"{row['tokens_per_second']:,.0f}",
                f"{100 * row['share_of_product']:.1f} %",
                f"{peer / row['seconds']:.2f}",
                f"{row['peak_bytes'] / 1e9:.1f}",
                f"{row['first']:.0f}",
            )
            for row in rows
        ],
    )


def _updates(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("the update alone (with a step on eight tokens)", "ms")
    return _table(head, [(row["update"], f"{1e3 * row['seconds']:.1f}") for row in rows])


def _evaluation(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("evaluation", "tokens/s")
    return _table(head, [(row["evaluation"], f"{row['tokens_per_second']:,.0f}") for row in rows])


def _trials(rows: Sequence[Mapping[str, Any]]) -> str:
    head = (
        *("a whole trial", "process, s", "trial, s", "first update, s", "tokens/s"),
        *("tokens/s without the first updates", "beside updates, s", "peak, GB", "final loss"),
    )
    return _table(
        head,
        [
            (
                row["trial"],
                f"{row['seconds']:.0f}",
                f"{row['wall_seconds']:.0f}",
                f"{row['first_update']:.0f}",
                f"{row['tokens_per_second']:,.0f}",
                f"{row['later_tokens_per_second']:,.0f}",
                f"{row['beside_updates']:.1f}",
                f"{row['peak_bytes'] / 1e9:.1f}",
                f"{row['final_val_loss']:.4f}",
            )
            for row in rows
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
