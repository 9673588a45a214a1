"""Forecasts that are written down before the run, so that they can be checked after it."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.forecast.answer import Answer, Target, plain
from analysis.forecast.ladder import Ladder, Rung, every_ladder, name_of
from analysis.forecast.laws import REGRESSORS
from analysis.statistics.intervals import ends_text, mean_with_ends
from analysis.table.selection import fulfilling
from analysis.table.text import markdown
from trainer.base.atomic import write_json
from trainer.base.errors import BadInput

NEEDED = ("optimizer", "arm", *REGRESSORS, "gap", "gap_low", "gap_high", "date")
INSIDE, OUTSIDE = "inside", "outside"
HEADS = ("forecast of", "at", "made", "forecast [95 %]", "measured [95 %]", "n", "error", "verdict")


def data_hash(ladder: Ladder) -> str:
    """SHA-256 of what a forecast was made from: the trials of the rungs and their numbers."""
    rungs = [
        [rung.settings, rung.trial_ids, rung.gaps.tolist(), rung.losses.tolist()]
        for rung in ladder.rungs
    ]
    return hashlib.sha256(json.dumps(rungs).encode()).hexdigest()


def record(answer: Answer, conditions: Mapping[str, str], folder: Path) -> Path:
    """Writes a forecast with its date and the hash of its data, and returns the file.

    The name holds the hash: the same forecast of the same data keeps its first date. `conditions`:
    those that chose the trials.
    """
    numbers, digest = plain(answer), data_hash(answer.ladder)
    at = "-".join(f"{letter}{value}" for letter, value in zip("TBN", answer.target, strict=True))
    path = folder / f"{answer.ladder.optimizer}-{answer.ladder.arm}-{at}-{digest[:8]}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        trials = sorted(answer.ladder.trial_ids)
        more = {"date": datetime.now(UTC).isoformat(), "data_hash": digest}
        write_json(path, {**numbers, **more, "conditions": dict(conditions), "trials": trials})
    return path


@dataclass(frozen=True)
class Check:
    """A recorded forecast beside the runs that were made since; `rung` is None without any."""

    forecast: Mapping[str, Any]
    rung: Rung | None
    was_known: bool = False
    """Whether one of these runs had ended before the forecast was made."""

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


def _target(forecast: Mapping[str, Any]) -> Target:
    return forecast["updates"], forecast["batch"], forecast["parameters"]


def checks(folder: Path, trials: pd.DataFrame) -> list[Check]:
    """Every forecast recorded in a folder, beside the trials of `load`'s table, by date."""
    forecasts = [_read(path) for path in sorted(folder.glob("*.json"))]
    return [_check(each, trials) for each in sorted(forecasts, key=lambda each: str(each["date"]))]


def _read(path: Path) -> dict[str, Any]:
    try:
        forecast = json.loads(path.read_text())
        missing = [key for key in NEEDED if key not in forecast]
    except (OSError, ValueError, TypeError) as error:
        raise BadInput("record", path, f"must hold recorded forecasts ({error})") from None
    if missing:
        raise BadInput("record", path, f"must hold recorded forecasts: lacks {', '.join(missing)}")
    return dict(forecast)


def _check(forecast: Mapping[str, Any], trials: pd.DataFrame) -> Check:
    """The forecast beside the runs of its target. If several ladders reach the target, the ladder
    with the most of the trials that the forecast was made from counts, then the largest ladder."""
    chosen = fulfilling(trials, forecast.get("conditions", {}))
    target = _target(forecast)
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


def text(every: Sequence[Check]) -> str:
    """A Markdown table with one row per forecast, and the score below it."""
    return f"{markdown(HEADS, map(_cells, every))}\n\n{score(every)}"


def score(every: Sequence[Check]) -> str:
    """How many of those that were checked held, and how many were too high."""
    checked = [each for each in every if each.verdict in (INSIDE, OUTSIDE)]
    inside = sum(each.verdict == INSIDE for each in checked)
    above = sum(each.error > 0 for each in checked)
    return (
        f"{len(checked)} checked: {inside} inside, {len(checked) - inside} outside of the 95 % "
        f"interval; {above} of them above what was measured, {len(checked) - above} below."
    )


def _cells(check: Check) -> list[str]:
    forecast = check.forecast
    ends = ends_text(forecast["gap_low"], forecast["gap_high"], "+.4f")
    cells = [
        f"{forecast['optimizer']}, {forecast['arm']}",
        name_of(_target(forecast)),
        str(forecast["date"])[:10],
        f"{forecast['gap']:+.4f}{ends}",
    ]
    if check.rung is None:
        return [*cells, "", "", "", check.verdict]
    mean, low, high = mean_with_ends(check.rung.gaps)
    measured = f"{mean:+.4f}{ends_text(low, high, '+.4f')}"
    return [*cells, measured, str(len(check.rung.gaps)), f"{check.error:+.4f}", check.verdict]
