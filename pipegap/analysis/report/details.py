"""What the page says of each trial: the file that opens on the page, and what made it.

What opens are settings, config, curves and log. The file is a script, since a page that was opened
from a disk may load nothing else. Each file holds the trials whose ids start alike, so that there
are some hundred files at most.
"""

import json
import re
import shlex
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from pipegap.analysis.report.facts import shown_value
from pipegap.analysis.table.metrics import config_of, curves
from pipegap.analysis.table.points import flatten, versions
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.folder.lease import attempts, read
from pipegap.trainer.store.records import Record

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
OF_TRIAL = ["trial_id", "status", "optimizer", "arm", "point", "seed", "final_val_loss"]
MADE_BY = ["git", "trainer_version", "device_name", "runner", "data_hash"]
LONG = re.compile("^([0-9a-f]{12})[0-9a-f]+")
"""A hash; its first 12 digits are enough to find it."""


def write_details(trials: pd.DataFrame, store: str, out: Path) -> None:
    """Write `trials/NAME.js` for all of these trials that have a folder.

    `store` is the word of a command that names their store.
    """
    by_file: dict[str, list[Row]] = {}
    for row in trials.to_dict("records"):
        by_file.setdefault(file_of(row["trial_id"]), []).append(row)
    (out / FOLDER).mkdir(exist_ok=True)
    for name, rows in by_file.items():
        (out / name).write_text(details(rows, store), "utf-8")


def file_of(trial_id: str) -> str:
    """Return the file that holds a trial, as script.js finds it."""
    start = START.match(trial_id)
    return f"{FOLDER}/{start[0] if start else 'other'}.js"


def details(rows: Iterable[Row], store: str) -> str:
    """Return the script by which the page knows these trials.

    Keys of the config that are equal in all of them stand once.
    """
    trials = {row["trial_id"]: _details(row, store) for row in rows if Path(row["folder"]).is_dir()}
    configs = [trial["config"] for trial in trials.values()]
    common = {
        key: value
        for key, value in (configs[0] if configs else {}).items()
        if all(key in config and _same(config[key], value) for config in configs)
    }
    for trial in trials.values():
        keys_of_trial = {key: value for key, value in trial["config"].items() if key not in common}
        trial["config"] = keys_of_trial
    return f"pipegap.trials({json.dumps(common)}, {json.dumps(trials)});\n"


def _same(first: Any, second: Any) -> bool:
    """1 and 1.0 are two values of a config."""
    return type(first) is type(second) and bool(first == second)


def _details(row: Row, store: str) -> dict[str, Any]:
    folder = Path(row["folder"])
    try:
        config = dict(flatten(config_of(str(folder))))
    except (BadInput, OSError):  # damaged meanwhile: a remark of the report says so
        config = {}
    losses, rerun_words = curves(folder), [f"trial_id={row['trial_id']}", "force=true", store]
    summary_rows = {words: row[name] for name, words in SUMMARY.items() if not pd.isna(row[name])}
    return {
        "summary": {words: shown_value(value) for words, value in summary_rows.items()},
        "command": f"pipegap rerun {shlex.join(rerun_words)}",
        "config": config,
        "curves": {"training": losses.train, "validation": losses.validation},
        "shown": losses.words,
        "log": [_attempt(read(path)) for path in attempts(folder)],
        "error": "" if pd.isna(row["error"]) else row["error"],
    }


def _attempt(attempt: Mapping[str, Any]) -> str:
    """Return a line of the log: who ran it, when, from which update on, and how that ended."""
    if not attempt:
        return "an attempt of which nothing is known"
    start = _time(attempt.get("started_at"))
    where = f"{attempt.get('host', '?')} pid {attempt.get('pid', '?')}"
    since = f", from update {attempt['from_update']:,}" if attempt.get("from_update") else ""
    reason = attempt.get("ended")
    end = f", {reason} {_time(attempt.get('ended_at'))}" if reason else ", no end recorded"
    return f"attempt {attempt.get('attempt', '?')}: {start} on {where}{since}{end}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def provenance(trials: pd.DataFrame, records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per trial that has a result: what it is, its loss, and what made it.

    The packages are one column, `torch 2.13.0, numpy 2.4.6`, and so are the sweeps that compare it.
    """
    table = trials[trials["finished_at"].notna()].reindex(columns=[*OF_TRIAL, *MADE_BY])
    for name in ("git", "data_hash"):
        table[name] = table[name].str.replace(LONG, r"\1", regex=True)
    names = versions(trials)
    packages = [
        ", ".join(
            f"{names[str(key)]} {version}" for key, version in row.items() if pd.notna(version)
        )
        for row in trials.loc[table.index, [*names]].to_dict("records")
    ]
    sweeps = [
        " ".join(record.label for record in records if trial_id in record.compared)
        for trial_id in table["trial_id"]
    ]
    return table.assign(packages=packages, sweeps=sweeps)


def makers(table: pd.DataFrame) -> pd.DataFrame:
    """Return how many trials each combination of code, machine, data and packages made."""
    keys = [*MADE_BY, "packages"]
    return table.groupby(keys, dropna=False).size().reset_index(name="trials")
