"""A duration is said in the unit that people would say it in."""

from __future__ import annotations

import pytest

from trainer.base.cli import duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((0.4, "0 s"), (99.4, "99 s"), (99.6, "2 min"), (40 * 60, "40 min"), (99 * 60, "99 min")),
        *((100 * 60, "1.7 h"), (12 * 3600, "12 h"), (71 * 3600, "71 h"), (75 * 3600, "3 days")),
        (3e8, "3,472 days"),
    ],
)
def test_durations_are_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said
