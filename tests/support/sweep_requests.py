"""Sweeps asked for in a few words, and their trials."""

from pathlib import Path
from typing import Any

from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial, points, unique
from pipegap.sweeps.request.schema import Sweep

ARMS = {
    "sync": ["pipeline=sync"],
    "delay": ["pipeline=pipedream_2bw"],
    "delay_ef": ["pipeline=pipedream_2bw", "correction=error_feedback"],
}


def content(**changes: Any) -> dict[str, Any]:
    """What a sweep file says."""
    plain = {"base": [], "grid": {}, "arms": ARMS, "seeds": [0], "verdict": "none"}
    return {**plain, **changes}


def asked(sweep: Sweep, results: Path) -> list[Trial]:
    """A trial as often as points ask for it."""
    return [trial for point in points(sweep, results) for trial in point.trials(sweep.seeds)]


def only(*words: str) -> Sweep:
    """The one sweep of a command line."""
    [sweep] = parse_request(words).sweeps.values()
    return sweep


def expand(sweep: Sweep, results: Path) -> list[Trial]:
    """Each trial once."""
    return unique(asked(sweep, results))
