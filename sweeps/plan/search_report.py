"""What a search tried and chose: lines for people, searched.csv and best.csv."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sweeps.plan.searching import Searched, Setting
from sweeps.request.expand import Trial
from sweeps.request.schema import Sweep
from sweeps.request.search import Search


def remarks(sweep: Sweep, points: Sequence[Searched]) -> list[str]:
    """How settings were chosen, then what was at each point; nothing without a search."""
    if sweep.search is None:
        return []
    asked = sweep.search
    seeds = ", ".join(map(str, asked.seeds))
    how = (
        f"{', '.join(asked.space)}: {asked.budget} settings that Optuna proposes are tried at each "
        f"point, in every arm, at seed {seeds}; the lowest mean final loss of an arm there chooses "
        "its setting, at which all arms are compared at the seeds of the sweep"
    )
    return [how, *(line for point in points for line in _lines(asked, point))]


def estimate(sweep: Sweep, points: Sequence[Searched]) -> list[str]:
    """Lines on what a plan cannot know yet."""
    if sweep.search is None:
        return []
    left = sum(sweep.search.budget - len(point.tried) for point in points)
    num_open = sum(not point.settled for point in points)
    if not num_open:
        return []
    trials = left * len(sweep.arms) * len(sweep.search.seeds)
    return [
        f"search    nothing is chosen yet at {num_open} of {len(points)} points: their arms are "
        f"priced at one setting, of up to {len(sweep.arms)}; {trials} further trials, at settings "
        "that are not proposed yet, are not counted"
    ]


def write(asked: Search, arms: Sequence[str], points: Sequence[Searched], out: Path) -> str:
    """Writes searched.csv, one row per setting that was tried; returns a line that says so."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "searched.csv").open("w", newline="") as file:
        table = csv.writer(file)
        losses = (f"loss {arm}" for arm in arms)
        table.writerow(["point", "proposed", *asked.space, *losses, "best of"])
        for point in points:
            table.writerows(_rows(point, [*asked.space], arms))
    return f"in {out}: searched.csv, every setting that was tried"


def compare(results: Path, asked: Search, trials: Iterable[Trial], out: Path) -> Iterator[str]:
    """Writes best.csv, `analysis.best` of the search; yields a line for each of its rows."""
    from analysis.statistics.best import best
    from analysis.table.load import load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the report has said the same
        table = best(load(results, [trial.plan.trial_id for trial in trials]), asked.seeds)
    table.to_csv(out / "best.csv", index=False)
    for row in table[table["n"] > 0].to_dict("records"):
        name = " ".join(filter(None, [row["optimizer"], row["task"]]))
        yield (
            f"{name}: {row['arm']} at its best ({row['setting']}) minus sync at its own "
            f"({row['setting_sync']}): {row['gap']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}], "
            f"n {row['n']}"
        )


def _rows(point: Searched, keys: Sequence[str], arms: Sequence[str]) -> Iterator[list[object]]:
    """A loss is missing if the arm diverged or has not finished."""
    for number, setting in enumerate(point.tried):
        found = setting.losses or {}
        losses = [found[arm] if found.get(arm, math.inf) < math.inf else None for arm in arms]
        best_of = " ".join(arm for arm, chosen in point.chosen.items() if chosen is setting)
        yield [_name(point), number, *(setting.values[key] for key in keys), *losses, best_of]


def _lines(asked: Search, point: Searched) -> Iterator[str]:
    name = _name(point)
    if not point.settled:
        yield f"{name}: nothing is chosen yet ({len(point.tried)} of {asked.budget} proposed)"
    elif not point.chosen:
        yield f"{name} is left out: its sync arm diverged at every setting tried"
    for arm, setting in point.chosen.items():
        loss = (setting.losses or {})[arm]
        yield f"{name}: best of {arm} is {_words(setting)} ({loss:.4f} at the seeds of choice)"


def _words(setting: Setting) -> str:
    return " ".join(f"{key}={value}" for key, value in setting.values.items())


def _name(point: Searched) -> str:
    return " ".join(point.point.overrides) or "every trial"
