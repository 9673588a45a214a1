"""What opens on the page for one trial: its settings, config, curves and log, as files beside it.

A file is a script, since a page that was opened from a disk may load nothing else. Each holds the
trials whose ids start alike, so that there are some hundred files at most.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Hashable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.table.curves import curves
from analysis.table.load import config_of
from analysis.table.points import flatten
from trainer.base.errors import BadInput
from trainer.folder.lease import attempts, read

FOLDER = "trials"
START = re.compile("[0-9a-z]{2}")
Row = Mapping[Hashable, Any]
SUMMARY = {
    "status": "status",
    "optimizer": "optimizer",
    "arm": "arm",
    "seed": "seed",
    "final_val_loss": "final validation loss",
    "diverged_at": "diverged at update",
    "num_parameters": "parameters",
    "num_active_parameters": "parameters active per token",
    "tokens": "tokens",
    "wall_seconds": "seconds, all attempts",
    "device_name": "device",
    "git": "code",
    "data_hash": "data hash",
    "folder": "folder",
}
"""Columns of the table of trials → what the page calls them."""


def write_details(trials: pd.DataFrame, results: str, out: Path) -> None:
    """Writes `trials/NAME.js` for all of these trials that have a folder."""
    by_file: dict[str, list[Row]] = {}
    for row in trials.to_dict("records"):
        by_file.setdefault(file_of(row["trial_id"]), []).append(row)
    (out / FOLDER).mkdir(exist_ok=True)
    for name, rows in by_file.items():
        (out / name).write_text(details(rows, results))


def file_of(trial_id: str) -> str:
    """The file that holds a trial, as script.js finds it."""
    start = START.match(trial_id)
    return f"{FOLDER}/{start[0] if start else 'other'}.js"


def details(rows: Iterable[Row], results: str) -> str:
    """The script that tells the page of these trials; keys of the config that are the same in all
    of them stand once."""
    found = {row["trial_id"]: _of(row, results) for row in rows if Path(row["folder"]).is_dir()}
    configs = [of["config"] for of in found.values()]
    common = {
        key: value
        for key, value in (configs[0] if configs else {}).items()
        if all(key in config and _same(config[key], value) for config in configs)
    }
    for of in found.values():
        of["config"] = {key: value for key, value in of["config"].items() if key not in common}
    return f"pipegap.trials({json.dumps(common)}, {json.dumps(found)});\n"


def _same(one: Any, other: Any) -> bool:
    """1 and 1.0 are two values of a config."""
    return type(one) is type(other) and bool(one == other)


def _of(row: Row, results: str) -> dict[str, Any]:
    folder = Path(row["folder"])
    try:
        config = dict(flatten(config_of(str(folder))))
    except (BadInput, OSError):  # damaged meanwhile: a remark of the report says so
        config = {}
    found = curves(folder)
    known = {words: row[name] for name, words in SUMMARY.items() if not pd.isna(row[name])}
    return {
        "summary": {words: _plain(value) for words, value in known.items()},
        "command": _command(row["trial_id"], results),
        "config": config,
        "curve": [
            *((*point, "training") for point in found.train),
            *((*point, "validation") for point in found.validation),
        ],
        "shown": found.words,
        "log": [_attempt(read(path)) for path in attempts(folder)],
        "error": "" if pd.isna(row["error"]) else row["error"],
    }


def _plain(value: Any) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:.6g}"
        if isinstance(value, float)
        else str(value)
    )


def _command(trial_id: str, results: str) -> str:
    """Runs it again; a finished trial from the start."""
    words = [f"trial_id={trial_id}", "force=true", f"results={results}"]
    return f"python -m sweeps rerun {shlex.join(words)}"


def _attempt(attempt: Mapping[str, Any]) -> str:
    """One line of the log: who ran it, when, from which update on, and how that ended."""
    if not attempt:
        return "an attempt of which nothing is known"
    begun = _time(attempt.get("started_at"))
    where = f"{attempt.get('host', '?')} pid {attempt.get('pid', '?')}"
    since = f", from update {attempt['from_update']:,}" if attempt.get("from_update") else ""
    ended = attempt.get("ended")
    end = f", {ended} {_time(attempt.get('ended_at'))}" if ended else ", no end recorded"
    return f"attempt {attempt.get('attempt', '?')}: {begun} on {where}{since}{end}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
