"""The time that a plan counts is near what was measured."""

from collections.abc import Mapping
from typing import Any

import pytest

from bench.counted import ROWS, counted


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_counted_is_near_what_was_measured(row: Mapping[str, Any]) -> None:
    """As near as bench/README.md says."""
    assert 0.8 < counted(row) / row["measured"] < 1.2
