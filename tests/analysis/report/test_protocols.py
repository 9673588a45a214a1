"""The table of both protocols: each optimizer at AdamW's values, and at its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import gaps, load
from analysis.report.protocols import protocols
from tests.support.synthetic_store import put


def point(store: Path, optimizer: str, lr: float, gap: float) -> None:
    for arm, loss in (("sync", 1.7), ("delay", 1.7 + gap), ("delay_ef", 1.7 + gap / 4)):
        losses = [loss + 0.01 * (arm == "delay") * seed for seed in (-1, 0, 1)]
        put(store, arm, losses, optimizer=optimizer, lr=lr, weight_decay=1.0)


def test_rows_say_whose_values_they_have(tmp_path: Path) -> None:
    point(tmp_path, "adamw", 0.002, 0.4)
    point(tmp_path, "muon", 0.002, 0.1)
    point(tmp_path, "muon", 0.008, 0.2)
    trials = load(tmp_path)
    table = protocols(trials, gaps(trials), "long")
    assert [*zip(table["optimizer"], table["rates"], strict=True)] == [
        ("adamw", "AdamW's"),
        ("muon", "AdamW's"),
        ("muon", "its own"),
    ]
    assert table["gap"].tolist() == pytest.approx([0.4, 0.1, 0.2])
    assert table["EF gap"].tolist() == pytest.approx([0.1, 0.025, 0.05])
    assert table["removed"].tolist() == pytest.approx([0.75] * 3)
    assert table["optimizer.lr"].tolist() == [0.002, 0.002, 0.008]


def test_one_protocol_alone_is_no_comparison(tmp_path: Path) -> None:
    point(tmp_path, "adamw", 0.002, 0.4)
    point(tmp_path, "muon", 0.002, 0.1)
    trials = load(tmp_path)
    assert protocols(trials, gaps(trials), "long").empty
