"""The passes of a delayed update are those that bench/README.md counts by hand."""

from __future__ import annotations

import pytest

from bench.passes import ARMS, UPDATE, WORDS, counted

SMALL = ("model=nano", "model.num_layers=1")


def test_what_delay_and_error_feedback_add() -> None:
    """In fp32 the delay copies W(t) to the next slot. Error Feedback copies it once more and
    subtracts what the optimizer made of it (3 reads, 2 writes); then it reads u_{t−1}, and its
    difference, λ times that and W(t + 1) are written in place (6 reads, 3 writes)."""
    passes = {}
    for arm, of_arm in ARMS.items():
        counts, size = counted([*SMALL, *WORDS, *of_arm])
        passes[arm] = [of[UPDATE] / size for of in (counts.read, counts.written, counts.made)]
    assert passes["sync"] == [0, 0, 0]
    assert passes["delay"] == [1, 1, 0]
    assert passes["delay + EF"] == pytest.approx([10, 6, 1], abs=0.01)
