"""What the page says in words: what was trained, what runs now, the settings of a trial."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pipegap.analysis.table import names
from pipegap.analysis.table.points import READ_AS, by_point, in_words, varied
from pipegap.trainer.base.errors import some
from pipegap.trainer.base.status import FINAL, Status
from pipegap.trainer.folder.lease import holder
from pipegap.trainer.folder.metrics import last_row

CUT_SHORT = (Status.DIVERGED, Status.FAILED)
"""Trials that made fewer updates than they were asked for."""
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
    whole = trials[~trials["status"].isin(CUT_SHORT)]
    active = trials["num_active_parameters"]
    values = {
        "model": trials["model"],
        "parameters": trials["num_parameters"],
        "of which active per token": active[active < trials["num_parameters"]],
        "data": trials["data"],
        "optimizers": trials["optimizer"].map(names.optimizer),
        "learning rates": _column(trials, "optimizer.lr"),
        "sequences per update": _column(trials, "batch_size"),
        "tokens per sequence": _column(trials, "seq_len"),
        "updates": whole["num_updates"],
        "arms": trials["arm"].map(names.arms(trials)),
        "seeds": trials["seed"],
    }
    words = {name: _words(column) for name, column in values.items()}
    words["trials"] = _statuses(trials)
    return Overview(title, _brief(words), [(name, said) for name, said in words.items() if said])


def _brief(words: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return model, data and training, each in a line."""
    parameters = words["parameters"] and f"{words['parameters']} parameters"
    updates = words["updates"] and f"{words['updates']} updates"
    lines = {
        "model": [words["model"], parameters],
        "data": [words["data"]],
        "training": [updates, f"seeds {words['seeds']}", words["trials"]],
    }
    return [(name, ", ".join(filter(None, parts))) for name, parts in lines.items()]


def summary(trials: pd.DataFrame) -> str:
    """Return how many trials there are and have each status: `13 trials: 12 completed, …`."""
    return f"{len(trials)} trials: {_statuses(trials)}" if len(trials) else "No trials yet."


def _statuses(trials: pd.DataFrame) -> str:
    counts = trials["status"].value_counts()
    return ", ".join(f"{n} {status}" for status, n in counts.items())


def _column(trials: pd.DataFrame, name: str) -> pd.Series:
    return trials[name] if name in trials else pd.Series(dtype=object)


def _words(column: pd.Series) -> str:
    values = sorted({*column.dropna()}, key=lambda value: (isinstance(value, str), value))
    if len(values) <= LISTED:
        return ", ".join(map(_word, values))
    if isinstance(values[0], str):
        return some([*map(str, values)])
    return f"{_word(values[0])} to {_word(values[-1])} ({len(values)} values)"


def _word(value: Any) -> str:
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
    held = holder(folder)
    if held is None:
        return None
    last = last_row(folder) or {}
    speed, asked = last.get("tokens_per_second"), row["num_updates"]
    done = f"{last.get('update', -1) + 1:,}"
    return TrialNow(
        row["trial_id"],
        str(row["optimizer"]),
        str(row["arm"]),
        str(row["seed"]),
        done if pd.isna(asked) else f"{done} of {asked:,}",
        f"{last['train_loss']:.4f}" if last.get("train_loss") is not None else "",
        f"{speed:,.0f}" if speed else "",
        f"{held.get('host', '?')} pid {held.get('pid', '?')}",
    )


def settings_by_trial(trials: pd.DataFrame, specs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the settings, in words, of each trial in the data of `specs`, by its id.

    The settings are ALWAYS, the keys that differ among the points of the trial's optimizer, and the
    arm.
    """
    datasets = (rows for spec in specs for rows in spec["datasets"].values())
    shown = {row["trial_id"] for rows in datasets for row in rows if "trial_id" in row}
    of_trials = trials[trials["trial_id"].isin(shown)]
    differing = by_point(varied(trials).values(), dict)
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
