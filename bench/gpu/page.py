"""The tables of what `bench.gpu` measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from analysis.table.text import markdown
from bench.gpu.device import Row

Cell = Callable[[Any], str]
Column = tuple[str, str, Cell]
"""A key of a row, the head of its column, and how a value is written."""
PEER = "transformers, compiled"
"""The step that ours are compared with."""


def scaled(factor: float, digits: int) -> Cell:
    """Writes a number times a factor with so many digits behind the point."""
    return lambda value: f"{factor * value:,.{digits}f}"


MS, GB, WHOLE = scaled(1e3, 0), scaled(1e-9, 1), scaled(1, 0)
COLUMNS: Mapping[str, Sequence[Column]] = {
    "preflight": (("found", "", str),),
    "rehearsals": (
        ("status", "status", str),
        ("stopped_after", "stopped after", str),
        ("difference", "what a resume changed", str),
        ("seconds", "s in all", WHOLE),
        ("peak_bytes", "peak, GB", GB),
    ),
    "limits": (
        ("flops_per_second", "TFLOP/s", scaled(1e-12, 0)),
        ("bytes_per_second", "TB/s, read and written", scaled(1e-12, 2)),
    ),
    "steps": (
        ("seconds", "ms per update", MS),
        ("least", "least", MS),
        ("most", "most", MS),
        ("busy", "of it kernels, ms", MS),
        ("launches", "kernels", WHOLE),
        ("tokens_per_second", "tokens/s", WHOLE),
        ("share_of_product", "of the product's FLOP/s, %", scaled(100, 1)),
        ("ratio", f"{PEER} / this", scaled(1, 2)),
        ("peak", "peak, GB", GB),
        ("first", "first update, s", WHOLE),
        ("graphs", "graphs", str),
        ("breaks", "breaks", str),
    ),
    "host": (
        ("seconds", "ms of the host", scaled(1e3, 2)),
        ("fake_launches", "kernels of the fake GPU", WHOLE),
    ),
    "evaluation": (("tokens_per_second", "tokens/s", WHOLE),),
    "checkpoints": (
        ("bytes", "GB", scaled(1e-9, 2)),
        ("copy", "copy to the host, s", scaled(1, 2)),
        ("write", "write, s", scaled(1, 2)),
        ("read", "read, s", scaled(1, 2)),
        ("restore", "restore, s", scaled(1, 2)),
    ),
    "trials": (
        ("seconds", "process, s", WHOLE),
        ("wall_seconds", "trial, s", WHOLE),
        ("first_update", "first update, s", WHOLE),
        ("tokens_per_second", "tokens/s", WHOLE),
        ("later_tokens_per_second", "tokens/s without the first updates", WHOLE),
        ("beside_updates", "beside updates, s", scaled(1, 1)),
        ("peak_bytes", "peak, GB", GB),
        ("final_val_loss", "final loss", scaled(1, 4)),
    ),
    "pair": (
        ("seconds", "ms", scaled(1e3, 3)),
        ("bytes_per_second", "GB/s", scaled(1e-9, 2)),
    ),
    "fake": (
        ("peak", "peak, GB", scaled(1e-9, 2)),
        ("fake_peak", "peak of the fake GPU, GB", scaled(1e-9, 2)),
        ("launches", "kernels", WHOLE),
        ("fake_launches", "kernels of the fake GPU", WHOLE),
    ),
}
"""Part → the columns of its table, beside the name of what was measured."""


def page(head: str, measured: Mapping[str, Mapping[str, Row]]) -> str:
    """All tables; `measured`: part → name → row. A part without a row has none."""
    parts = [_part(name, list(rows.values())) for name, rows in measured.items() if rows]
    return "\n\n".join([head, *parts]) + "\n"


def _part(part: str, rows: Sequence[Row]) -> str:
    told = [row for row in rows if "said" not in row]
    lines = [f"{part}: {row['name']}: {row['said']}" for row in rows if "said" in row]
    if told:
        columns = COLUMNS[part]
        cells = ((row["name"], *_cells(row, columns)) for row in _compared(told))
        lines.append(markdown([part, *(head for _, head, _ in columns)], cells))
    return "\n\n".join(lines)


def _cells(row: Row, columns: Sequence[Column]) -> Iterator[str]:
    for key, _, write in columns:
        value = row.get(key)
        yield "" if value is None else write(value)


def _compared(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows, with the peer's seconds over their own where the peer was measured."""
    peer = next((row for row in rows if row["name"] == PEER), None)
    for row in rows:
        yield row if peer is None else {**row, "ratio": peer["seconds"] / row["seconds"]}
