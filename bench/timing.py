"""Fair timing: the contenders in turn, medians, ratios within one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median


def medians(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each contender over `rounds` alternating rounds, two warm-ups first."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 2):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


def table(rows: Mapping[str, float], baseline: str, unit: float, name: str) -> str:
    """A Markdown table of medians with their ratio to the baseline's."""
    lines = [f"| | {name} | {baseline} / this |", "| --- | --- | --- |"]
    for key, seconds in rows.items():
        lines.append(f"| {key} | {seconds / unit:.1f} | {rows[baseline] / seconds:.2f} |")
    return "\n".join(lines)
