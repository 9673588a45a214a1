"""The trials that sweeps asked for and a store lacks, their cost, and the command for them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

import pandas as pd

from analysis.table.records import Asked, Record
from trainer.base.status import FINAL, Status

COLUMNS = [
    *("sweep", "scale", "asked", "done", "failed", "missing", "seconds", "unpriced", "tokens"),
    *("flops", "arms", "settled", "command"),
]


def missing(store: pd.DataFrame, records: Sequence[Record], named: Iterable[str]) -> pd.DataFrame:
    """One row per sweep that is not done; columns: COLUMNS.

    `seconds`, `tokens` and `flops` are expected sums over the missing trials, run one after the
    other; `unpriced` counts the trials whose seconds are not known. A trial of several sweeps is
    counted in each of them. `arms`: how many are missing of each arm. Sweeps that a figure, table
    or claim has `named` but that left no record have no counts; dry_run=true tells their cost.
    """
    status = dict(zip(store["trial_id"], store["status"], strict=True))
    rows = [_of_record(record, status) for record in records]
    scales = sorted({record.scale for record in records}) or ["tiny"]
    there = {(record.sweep, record.scale) for record in records}
    rows += [
        {"sweep": sweep, "scale": scale, "command": f"python -m sweeps sweep={sweep} scale={scale}"}
        for scale in scales
        for sweep in dict.fromkeys(named)
        if (sweep, scale) not in there
    ]
    counts = dict.fromkeys(("asked", "done", "failed", "missing", "unpriced", "tokens"), "Int64")
    table = pd.DataFrame(rows, columns=COLUMNS).astype(counts)
    done = (table["missing"] == 0).fillna(False) & (table["settled"] == True)  # noqa: E712
    return table[~done.astype(bool)].reset_index(drop=True)


def _of_record(record: Record, status: dict[str, str]) -> dict[str, object]:
    left = {key: asked for key, asked in record.trials.items() if status.get(key) not in FINAL}
    arms = pd.Series([asked.arm for asked in left.values()], dtype="string").value_counts()
    return {
        "sweep": record.sweep,
        "scale": record.scale,
        "asked": len(record.trials),
        "done": len(record.trials) - len(left),
        "failed": sum(status.get(key) == Status.FAILED for key in left),
        "missing": len(left),
        "seconds": sum(asked.seconds or 0.0 for asked in left.values()),
        "unpriced": sum(asked.seconds is None for asked in left.values()),
        "tokens": _sum(left.values(), "tokens"),
        "flops": _sum(left.values(), "flops"),
        "arms": ", ".join(f"{count} {arm}" for arm, count in sorted(arms.items())),
        "settled": record.settled,
        "command": shlex.join(["python", "-m", "sweeps", *record.words]),
    }


def _sum(asked: Iterable[Asked], name: str) -> float:
    return sum(getattr(trial, name) or 0 for trial in asked)


def cost(table: pd.DataFrame) -> str:
    """The table of `missing` in a sentence."""
    counted = table[table["missing"].notna()]
    never = len(table) - len(counted)
    open_sweeps = f"{never} sweeps were never run here (dry_run=true prices them)." if never else ""
    if counted.empty:
        return open_sweeps or "Nothing is missing of what was asked for."
    sweeps = "1 sweep" if len(counted) == 1 else f"{len(counted)} sweeps"
    return (
        f"{counted['missing'].sum()} trials of {sweeps} are missing: {_hours(counted)}, "
        f"{counted['tokens'].sum():,} tokens, {counted['flops'].sum():.2g} floating-point "
        f"operations. {open_sweeps}"
    ).strip()


def _hours(counted: pd.DataFrame) -> str:
    unpriced = counted["unpriced"].sum()
    if unpriced and unpriced == counted["missing"].sum():
        return "how long they take is not known"
    without = f" without {unpriced} of which it is not known" if unpriced else ""
    return f"{counted['seconds'].sum() / 3600:.1f} hours one after the other{without}"
