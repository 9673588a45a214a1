"""The table of gaps in words has the rows with a pair, and the columns that tell them apart."""

from __future__ import annotations

from pathlib import Path

from analysis import gaps, load
from analysis.statistics.text import gap_table
from tests.support.synthetic_store import put


def header(table: str) -> list[str]:
    return [cell.strip() for cell in table.strip().splitlines()[0].strip("|").split("|")]


def test_a_row_without_a_pair_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, "sync", [1.0, 1.1])
    put(tmp_path, "delay", [1.2, 1.3])
    put(tmp_path, "delay_ef", [1.2], momentum=0.5)  # no sync with this momentum
    found = gaps(load(tmp_path))
    assert (found["pairs"] > 0).sum() == 1 < len(found)
    rows = gap_table(found).strip().splitlines()[2:]
    assert len(rows) == 1
    assert "+0.2000" in rows[0]


def test_only_what_varies_has_a_column(tmp_path: Path) -> None:
    for momentum in (0.5, 0.9):
        put(tmp_path, "sync", [1.0], momentum=momentum)
        put(tmp_path, "delay", [1.2], momentum=momentum)
    shown = header(gap_table(gaps(load(tmp_path))))
    assert "setting" in shown
    assert not {"stages", "microbatches"} & {*shown}
