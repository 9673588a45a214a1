"""Durations as people say them."""

from __future__ import annotations

UNITS = (("s", 1.0, 100.0), ("min", 60.0, 100.0), ("h", 3600.0, 72.0))
"""A unit, its seconds, and how many of it people count at most; longer ones are days."""
DAY = 24 * 3600.0


def duration(seconds: float) -> str:
    """`seconds` in the unit that people would choose: 40 s, 12 min, 2.5 h, 12 days."""
    for unit, length, most in UNITS:
        if round(seconds / length) < most:
            return f"{seconds / length:.{int(unit == 'h' and seconds < 10 * length)}f} {unit}"
    return f"{seconds / DAY:,.0f} days"
