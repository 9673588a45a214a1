"""What the page says in words of sweeps and of each trial: what was trained, what runs, what made
it.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pipegap.analysis.table import names
from pipegap.analysis.table.metrics import config_of, curves
from pipegap.analysis.table.points import (
    READ_AS,
    by_point,
    data_names,
    flatten,
    in_words,
    labelled,
    updates_asked,
    versions,
)
from pipegap.trainer.base.cli import duration
from pipegap.trainer.base.errors import FINAL, BadInput, Status, some
from pipegap.trainer.folder.lease import attempts, holder, read
from pipegap.trainer.folder.wellformed import last_row
from pipegap.trainer.store.records import Record

# What the page says in words: what was trained, what runs now, the settings of a trial; and which
# trials that sweeps asked for are missing, what they cost, and the command for them.

LISTED = 6
"""Values that are named; of more numbers the smallest and the largest are."""
ALWAYS = ["optimizer", "optimizer.lr", "batch_size", "seq_len", "num_updates_asked"]
"""Settings that every tooltip of a trial has."""


class Overview(NamedTuple):
    """What was trained: `brief` in three rows of a name and its values in words, `rows` in full."""

    title: str
    brief: Sequence[tuple[str, str]]
    rows: Sequence[tuple[str, str]]


def overview(title: str, trials: pd.DataFrame) -> Overview:
    """Return model, parameters, data, optimizers, rates, batch, updates, arms, seeds in words."""
    # Of those that diverged or failed it would be fewer updates than they were asked for.
    whole = trials[~trials["status"].isin([Status.DIVERGED, Status.FAILED])]
    active = trials["num_active_parameters"]
    values = {
        "model": trials["model"],
        "parameters": trials["num_parameters"],
        "of which active per token": active[active < trials["num_parameters"]],
        "data": trials["data"] if trials.empty else data_names(trials),
        "optimizers": trials["optimizer"].map(names.optimizer),
        "learning rates": _column(trials, "optimizer.lr"),
        "sequences per update": _column(trials, "batch_size"),
        "tokens per sequence": _column(trials, "seq_len"),
        "updates": whole["num_updates"],
        "arms": trials["arm"].map(names.arms(trials)),
        "seeds": trials["seed"],
    }
    words = {name: _words(column) for name, column in values.items()}
    words["optimizers"] = ", ".join(dict.fromkeys(values["optimizers"]))  # in the order of losses
    words["trials"] = _statuses(trials)
    return Overview(title, _brief(words), [(name, text) for name, text in words.items() if text])


def _brief(words: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return model, data and training, each in a line."""
    parameters = words["parameters"] and f"{words['parameters']} parameters"
    updates = words["updates"] and f"{words['updates']} updates"
    lines = {
        "model": [words["model"], parameters],
        "data": [words["data"]],
        "training": [updates, f"seeds {words['seeds']}; {words['trials']}"],
    }
    return [(name, ", ".join(filter(None, parts))) for name, parts in lines.items()]


def summary(trials: pd.DataFrame, compared: Collection[str], of_sweeps: Collection[str]) -> str:
    """Return how many trials there are, have each status, and are `compared` (ids), if not all:
    `96 trials: 95 completed, 1 diverged; 72 compared, 24 longer for the answer`.

    `of_sweeps`: ids of the trials that sweeps asked for; empty where there is no sweep.
    """
    if trials.empty:
        return "No trials yet."
    ids, updates = trials["trial_id"], updates_asked(trials)
    is_of_sweep = ids.isin(of_sweeps) | (not of_sweeps)
    is_compared = ids.isin(compared) & is_of_sweep
    is_longer = is_of_sweep & ~is_compared & (updates > updates[is_compared].max())
    counts = {
        "compared": is_compared,
        "longer for the answer": is_longer,
        "to choose settings": is_of_sweep & ~is_compared & ~is_longer,
        "of no sweep": ~is_of_sweep,
    }
    text = ", ".join(f"{which.sum()} {words}" for words, which in counts.items() if which.any())
    why = "" if is_compared.all() else f"; {text}"
    return f"{len(trials)} trials: {_statuses(trials)}{why}"


def _statuses(trials: pd.DataFrame) -> str:
    counts = trials["status"].value_counts()
    return ", ".join(f"{n} {status}" for status, n in counts.items())


def _column(trials: pd.DataFrame, name: str) -> pd.Series:
    return trials[name] if name in trials else pd.Series(dtype=object)


def _words(column: pd.Series) -> str:
    # Numbers before texts: Python compares no number with a text.
    values = sorted({*column.dropna()}, key=lambda value: (isinstance(value, str), value))
    are_whole = len(values) > 2 and all(isinstance(value, Integral) for value in values)
    if are_whole and values[-1] - values[0] == len(values) - 1:  # none is left out
        return f"{value_text(values[0])} to {value_text(values[-1])}"
    if len(values) <= LISTED:
        return ", ".join(map(value_text, values))
    if isinstance(values[0], str):
        return some([*map(str, values)])
    return f"{value_text(values[0])} to {value_text(values[-1])} ({len(values)} values)"


def value_text(value: Any) -> str:
    """Return a value in words: `4,096`, `0.004`, `muon`."""
    if isinstance(value, Integral):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


class TrialNow(NamedTuple):
    """One trial that a process runs, in words."""

    trial_id: str
    optimizer: str
    arm: str
    seed: str
    update: str
    loss: str
    speed: str
    where: str


def running(trials: pd.DataFrame) -> list[TrialNow]:
    """Return the trials of the table that have no final result and that a process holds."""
    rows = trials.loc[~trials["status"].isin(FINAL)].to_dict("records")
    return [trial for row in rows if (trial := _running(row)) is not None]


def _running(row: dict[Any, Any]) -> TrialNow | None:
    folder = Path(row["folder"])
    lease_holder = holder(folder)
    if lease_holder is None:
        return None
    # Before its first update a trial has no row.
    last = last_row(folder) or {}
    speed, num_updates = last.get("tokens_per_second"), row["num_updates"]
    done = f"{last.get('update', -1) + 1:,}"
    return TrialNow(
        row["trial_id"],
        str(row["optimizer"]),
        str(row["arm"]),
        str(row["seed"]),
        done if pd.isna(num_updates) else f"{done} of {num_updates:,}",
        f"{last['train_loss']:.4f}" if last.get("train_loss") is not None else "",
        f"{speed:,.0f}" if speed else "",
        f"{lease_holder.get('host', '?')} pid {lease_holder.get('pid', '?')}",
    )


def settings_by_trial(trials: pd.DataFrame, specs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the settings, in words, of each trial in the data of `specs`, by its id.

    The settings are ALWAYS, the keys that differ among the points of the trial's optimizer, and the
    arm.
    """
    # Trials that a pointer can meet in a picture: a store may have many more.
    datasets = (rows for spec in specs for rows in spec["datasets"].values())
    ids_shown = {row["trial_id"] for rows in datasets for row in rows if "trial_id" in row}
    of_trials = trials[trials["trial_id"].isin(ids_shown)]
    differing = by_point(labelled(trials), dict)
    points = of_trials.drop_duplicates("point").set_index("point")
    always = {key: READ_AS.get(key, key) for key in ALWAYS if key in points}
    words = {
        point: in_words({always[key]: row[key] for key in always} | differing.get(str(point), {}))
        for point, row in points.iterrows()
    }
    return {
        trial_id: f"{words[point]}, arm={arm}"
        for trial_id, point, arm in of_trials[["trial_id", "point", "arm"]].itertuples(index=False)
    }


COLUMNS = [
    *("sweep", "scale", "asked", "done", "failed", "missing", "seconds", "unpriced", "tokens"),
    *("flops", "arms", "settled", "command"),
]


def missing(
    trials: pd.DataFrame, records: Sequence[Record], names: Iterable[str], store: str
) -> pd.DataFrame:
    """Return one row per sweep that is not done; columns: COLUMNS.

    `seconds`, `tokens` and `flops` are expected sums over the missing trials, run one after the
    other. `unpriced` counts the trials whose seconds are not known, and `seconds` is missing if
    none are. A trial of several sweeps is counted in each of them. `arms` says how many trials are
    missing of each arm. A sweep that a figure, table or claim has `names` but that left no record
    has neither counts nor a price; dry_run=true tells them. `store` is the word of a command that
    names the store.
    """
    status = dict(zip(trials["trial_id"], trials["status"], strict=True))
    rows = [_of_record(record, status, store) for record in records]
    scales = sorted({record.scale for record in records}) or ["tiny"]
    sweeps_there = {(record.sweep, record.scale) for record in records}
    for scale, sweep in product(scales, dict.fromkeys(names)):
        if (sweep, scale) not in sweeps_there:
            line = command([f"sweep={sweep}", f"scale={scale}"], store)
            rows.append({"sweep": sweep, "scale": scale, "command": line})
    counts = dict.fromkeys(("asked", "done", "failed", "missing", "unpriced", "tokens"), "Int64")
    table = pd.DataFrame(rows, columns=COLUMNS).astype(counts)
    # A sweep that goes on may ask for more: one is done if its record says that it is settled.
    done = (table["missing"] == 0).fillna(False) & (table["settled"] == True)  # noqa: E712
    return table[~done.astype(bool)].reset_index(drop=True)


def command(words: Iterable[str], store: str) -> str:
    """Return the sweep of these words into `store`, in whatever store they were run before."""
    other_words = [word for word in words if not word.startswith("results=")]
    return shlex.join(["pipegap", "sweep", *other_words, store])


def _of_record(record: Record, status: dict[str, str], store: str) -> dict[str, object]:
    unfinished = {
        key: trial for key, trial in record.trials.items() if status.get(key) not in FINAL
    }
    seconds = [trial.seconds for trial in unfinished.values() if trial.seconds is not None]
    # Without a known time the sum is missing, and of nothing that is missing it is 0.
    arms = Counter(trial.arm for trial in unfinished.values())
    return {
        "sweep": record.sweep,
        "scale": record.scale,
        "asked": len(record.trials),
        "done": len(record.trials) - len(unfinished),
        "failed": sum(status.get(key) == Status.FAILED for key in unfinished),
        "missing": len(unfinished),
        "seconds": sum(seconds) if seconds or not unfinished else None,
        "unpriced": len(unfinished) - len(seconds),
        "tokens": sum(trial.tokens or 0 for trial in unfinished.values()),
        "flops": sum(trial.flops or 0 for trial in unfinished.values()),
        "arms": ", ".join(f"{count} {arm}" for arm, count in sorted(arms.items())),
        "settled": record.settled,
        # Without what was added: a command of several sweeps did so for some of them alone.
        "command": command(record.given, store),
    }


def for_people(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `missing` for people: times and large numbers in words."""
    words = {
        "time": table["seconds"].map(duration, na_action="ignore"),
        "tokens": table["tokens"].map("{:,}".format, na_action="ignore"),
        "FLOPs": table["flops"].map("{:.2g}".format, na_action="ignore"),
        "arms": table["arms"].map(names.prose, na_action="ignore"),
    }
    columns = ["sweep", "scale", "asked", "done", "failed", "missing", *words, "command"]
    return table.assign(**words)[columns]


def cost(table: pd.DataFrame) -> str:
    """Return the table of `missing` in a sentence."""
    rows_missing = table[table["missing"].fillna(0) > 0]
    # A sweep that left no record has no counts.
    never = int(table["missing"].isna().sum())
    were = "1 sweep was" if never == 1 else f"{never} sweeps were"
    open_sweeps = f"{were} never run here (dry_run=true prices them)." if never else ""
    if rows_missing.empty:
        return open_sweeps or "Nothing is missing of what was asked for."
    sweeps = "1 sweep" if len(rows_missing) == 1 else f"{len(rows_missing)} sweeps"
    missing = int(rows_missing["missing"].sum())
    trials = "1 trial" if missing == 1 else f"{missing} trials"
    return (
        f"{trials} of {sweeps} {_missing_time(rows_missing)}, "
        f"{rows_missing['tokens'].sum():,} tokens, {rows_missing['flops'].sum():.2g} "
        f"floating-point operations. {open_sweeps}"
    ).strip()


def _missing_time(rows_missing: pd.DataFrame) -> str:
    are = "is missing" if rows_missing["missing"].sum() == 1 else "are missing"
    unpriced = rows_missing["unpriced"].sum()
    if unpriced == rows_missing["missing"].sum():
        return f"{are}: how long they take is not known"
    without = f" without {unpriced} of which it is not known" if unpriced else ""
    return f"{are}: {duration(rows_missing['seconds'].sum())} one after the other{without}"


# What the page says of each trial: the file that opens on the page, and what made it.
#
# What opens are settings, config, curves and log. The file is a script, since a page that was
# opened from a disk may load nothing else. Each file holds the trials whose ids start alike, so
# that there are some hundred files at most.

FOLDER = "trials"
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
        # script.js finds the file of a trial by the same rule.
        start = re.match("[0-9a-z]{2}", row["trial_id"])
        by_file.setdefault(f"{FOLDER}/{start[0] if start else 'other'}.js", []).append(row)
    (out / FOLDER).mkdir(exist_ok=True)
    for name, rows in by_file.items():
        (out / name).write_text(details(rows, store), "utf-8")


def details(rows: Iterable[Row], store: str) -> str:
    """Return the script by which the page knows these trials.

    Keys of the config that are equal in all of them stand once.
    """
    trials = {row["trial_id"]: _details(row, store) for row in rows if Path(row["folder"]).is_dir()}
    configs = [trial["config"] for trial in trials.values()]
    common = {
        key: value
        for key, value in (configs[0] if configs else {}).items()
        # 1 and 1.0 are two values of a config, though they are equal.
        if all(
            key in config and type(config[key]) is type(value) and config[key] == value
            for config in configs
        )
    }
    for trial in trials.values():
        config = trial["config"]
        trial["config"] = {key: config[key] for key in config if key not in common}
    return f"pipegap.trials({json.dumps(common)}, {json.dumps(trials)});\n"


def _details(row: Row, store: str) -> dict[str, Any]:
    folder = Path(row["folder"])
    try:
        config = dict(flatten(config_of(str(folder))))
    except (BadInput, OSError):  # damaged meanwhile: a remark of the report says so
        config = {}
    losses, rerun_words = curves(folder), [f"trial_id={row['trial_id']}", "force=true", store]
    # The page shows no empty rows.
    summary_rows = {words: row[name] for name, words in SUMMARY.items() if not pd.isna(row[name])}
    return {
        "summary": {words: value_text(value) for words, value in summary_rows.items()},
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
    start = _utc(attempt.get("started_at"))
    where = f"{attempt.get('host', '?')} pid {attempt.get('pid', '?')}"
    since = f", from update {attempt['from_update']:,}" if attempt.get("from_update") else ""
    reason = attempt.get("ended")
    end = f", {reason} {_utc(attempt.get('ended_at'))}" if reason else ", no end recorded"
    return f"attempt {attempt.get('attempt', '?')}: {start} on {where}{since}{end}"


def _utc(seconds: float | None) -> str:
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
