"""Fair timing: the contenders in turn, medians, ratios within one run; a benchmark's words."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from types import SimpleNamespace

import torch.distributed as dist

from pipegap.trainer.base.cli import split_word
from pipegap.trainer.ranks.groups import Gang

Call = Callable[[], object]
WARM_UPS = 2
"""Rounds that do not count."""


def options(words: Sequence[str] | None = None, **defaults: str | int) -> SimpleNamespace:
    """The `words` key=value, or those of the command line, over the `defaults`, of whose types they
    are."""
    values = dict(map(split_word, sys.argv[1:] if words is None else words))
    if unknown := values.keys() - defaults.keys():
        raise SystemExit(f"{', '.join(sorted(unknown))}: must be among {', '.join(defaults)}")
    parsed = {key: type(defaults[key])(value) for key, value in values.items()}
    return SimpleNamespace(**defaults | parsed)


def seconds_of(run: Call) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def medians(
    contenders: Mapping[str, Call], rounds: int, measure: Callable[[Call], float] = seconds_of
) -> dict[str, float]:
    """Median seconds of each contender over `rounds` rounds, two warm-ups first: in each round all
    have a turn, and each round begins with another one. `measure` returns the seconds of a call."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds + WARM_UPS):
        # Whoever comes first finds another cache than the others: each does, in turn.
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(measure(contenders[name]))
    return {name: median(of_all[WARM_UPS:]) for name, of_all in seconds.items()}


def medians_of_all(gang: Gang, runs: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Median seconds of each run, which all ranks begin and end together."""

    def with_others(run: Call) -> Call:
        def timed() -> None:
            gang.heartbeat.beat()
            run()
            dist.barrier()  # the slowest rank's time is everyone's

        return timed

    return medians({name: with_others(run) for name, run in runs.items()}, rounds)


def table(rows: Mapping[str, float], baseline: str, unit: float, name: str) -> str:
    """A Markdown table of medians with their ratio to the baseline's."""
    lines = [f"| | {name} | {baseline} / this |", "| --- | --- | --- |"]
    for key, seconds in rows.items():
        lines.append(f"| {key} | {seconds / unit:.1f} | {rows[baseline] / seconds:.2f} |")
    return "\n".join(lines)
