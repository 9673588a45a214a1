"""Numbers as people say them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """`seconds` in the unit that people would choose: s, min or h."""
    if seconds < 1:
        return "less than 1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
