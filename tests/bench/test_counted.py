"""The time that a plan counts is near what was measured."""

import pytest

from bench.counted import ROWS, Measured, counted


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_counted_is_near_what_was_measured(row: Measured) -> None:
    """As near as bench/README.md says."""
    assert 0.8 < counted(row) / row.tokens_per_second < 1.2
