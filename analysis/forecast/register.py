"""Forecasts that are written down before the run, so that they can be checked after it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.forecast.answer import Answer
from analysis.forecast.ladder import Ladder, Rung, every_ladder, name_of
from analysis.forecast.text import plain
from analysis.statistics.intervals import mean_interval
from analysis.table.selection import fulfilling
from analysis.table.text import markdown
from trainer.base.atomic import write_json
from trainer.base.errors import BadInput

NEEDED = (
    "optimizer",
    "arm",
    "updates",
    "batch",
    "parameters",
    "gap",
    "gap_low",
    "gap_high",
    "date",
)
INSIDE, OUTSIDE = "inside", "outside"
HEADS = ("forecast of", "at", "made", "forecast [95 %]", "measured [95 %]", "n", "error", "verdict")


def data_hash(ladder: Ladder) -> str:
    """SHA-256 of what a forecast was made from: the trials of the rungs and their numbers."""
    rungs = [
        [rung.settings, rung.trial_ids, rung.gaps.tolist(), rung.losses.tolist()]
        for rung in ladder.rungs
    ]
    return hashlib.sha256(json.dumps(rungs).encode()).hexdigest()


def record(of: Answer, conditions: Mapping[str, str], folder: Path) -> Path:
    """Writes a forecast with its date and the hash of its data, and returns the file.

    The name holds the hash: the same forecast of the same data keeps its first date. `conditions`:
    those that chose the trials.
    """
    found, digest = plain(of), data_hash(of.ladder)
    at = "-".join(f"{letter}{value}" for letter, value in zip("TBN", of.target, strict=True))
    path = folder / f"{of.ladder.optimizer}-{of.ladder.arm}-{at}-{digest[:8]}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        trials = sorted(of.ladder.trial_ids)
        more = {"date": datetime.now(UTC).isoformat(), "data_hash": digest}
        write_json(path, {**found, **more, "conditions": dict(conditions), "trials": trials})
    return path


@dataclass(frozen=True)
class Check:
    """A recorded forecast beside the runs that were made since; `rung` is None without any."""

    forecast: Mapping[str, Any]
    rung: Rung | None
    was_known: bool = False
    """Whether one of these runs had ended before the forecast was made."""

    @property
    def settings(self) -> tuple[int, int, int]:
        """Updates, tokens per update, parameters."""
        said = self.forecast
        return said["updates"], said["batch"], said["parameters"]

    @property
    def verdict(self) -> str:
        """In words."""
        if self.rung is None:
            return "not run yet"
        if self.was_known:
            return "no forecast: runs had ended before it"
        mean = float(self.rung.gaps.mean())
        is_inside = self.forecast["gap_low"] <= mean <= self.forecast["gap_high"]
        return INSIDE if is_inside else OUTSIDE

    @property
    def error(self) -> float:
        """Forecast minus measured mean gap; NaN before the run."""
        return math.nan if self.rung is None else self.forecast["gap"] - self.rung.gaps.mean()


def checks(folder: Path, trials: pd.DataFrame) -> list[Check]:
    """Every forecast recorded in a folder, beside the trials of `load`'s table, by date."""
    found = [_read(path) for path in sorted(folder.glob("*.json"))]
    return [_check(each, trials) for each in sorted(found, key=lambda each: str(each["date"]))]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
        missing = [key for key in NEEDED if key not in found]
    except (OSError, ValueError, TypeError) as error:
        raise BadInput("record", path, f"must hold recorded forecasts ({error})") from None
    if missing:
        raise BadInput("record", path, f"must hold recorded forecasts: lacks {', '.join(missing)}")
    return dict(found)


def _check(forecast: Mapping[str, Any], trials: pd.DataFrame) -> Check:
    """The forecast beside the runs of its target. If several ladders reach the target, the ladder
    with the most of the trials that the forecast was made from counts, then the largest ladder."""
    chosen = fulfilling(trials, forecast.get("conditions", {}))
    target = tuple(forecast[key] for key in ("updates", "batch", "parameters"))
    reached = [
        (ladder, rung)
        for ladder in every_ladder(chosen, forecast["optimizer"])
        for rung in ladder.rungs
        if ladder.arm == forecast["arm"] and rung.settings == target
    ]
    if not reached:
        return Check(forecast, None)
    made_from = {*forecast.get("trials", [])}
    _, rung = max(reached, key=lambda at: (len(made_from & at[0].trial_ids), at[0].size))
    ended = chosen.loc[chosen["trial_id"].isin(rung.trial_ids), "finished_at"]
    return Check(forecast, rung, bool((ended < pd.Timestamp(forecast["date"])).any()))


def text(found: Sequence[Check]) -> str:
    """A Markdown table with one row per forecast, and the score below it."""
    return f"{markdown(HEADS, map(_cells, found))}\n\n{score(found)}"


def score(found: Sequence[Check]) -> str:
    """How many of those that were checked held, and how many were too high."""
    checked = [each for each in found if each.verdict in (INSIDE, OUTSIDE)]
    inside = sum(each.verdict == INSIDE for each in checked)
    above = sum(each.error > 0 for each in checked)
    return (
        f"{len(checked)} checked: {inside} inside, {len(checked) - inside} outside of the 95 % "
        f"interval; {above} of them above what was measured, {len(checked) - above} below."
    )


def _cells(of: Check) -> list[str]:
    said = of.forecast
    interval = f"[{said['gap_low']:+.4f}, {said['gap_high']:+.4f}]"
    cells = [f"{said['optimizer']}, {said['arm']}", name_of(of.settings), str(said["date"])[:10]]
    cells.append(f"{said['gap']:+.4f} {interval}")
    if of.rung is None:
        return [*cells, "", "", "", of.verdict]
    mean, (low, high) = float(of.rung.gaps.mean()), mean_interval(of.rung.gaps)
    ends = "" if math.isnan(low) else f" [{low:+.4f}, {high:+.4f}]"
    seeds = str(len(of.rung.gaps))
    return [*cells, f"{mean:+.4f}{ends}", seeds, f"{of.error:+.4f}", of.verdict]
