"""The trials that sweeps asked for and a store lacks, their cost, and the command for them."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

import pandas as pd

from pipegap.trainer.base.cli import duration
from pipegap.trainer.base.status import FINAL, Status
from pipegap.trainer.store.records import Record

COLUMNS = [
    *("sweep", "scale", "asked", "done", "failed", "missing", "seconds", "unpriced", "tokens"),
    *("flops", "arms", "settled", "command"),
]


def missing(
    trials: pd.DataFrame, records: Sequence[Record], named: Iterable[str], store: str
) -> pd.DataFrame:
    """Return one row per sweep that is not done; columns: COLUMNS.

    `seconds`, `tokens` and `flops` are expected sums over the missing trials, run one after the
    other. `unpriced` counts the trials whose seconds are not known, and `seconds` is missing if
    none are. A trial of several sweeps is counted in each of them. `arms` says how many trials are
    missing of each arm. A sweep that a figure, table or claim has `named` but that left no record
    has neither counts nor a price; dry_run=true tells them. `store` is the word of a command that
    names the store.
    """
    status = dict(zip(trials["trial_id"], trials["status"], strict=True))
    rows = [_of_record(record, status, store) for record in records]
    scales = sorted({record.scale for record in records}) or ["tiny"]
    there = {(record.sweep, record.scale) for record in records}
    rows += [
        {
            "sweep": sweep,
            "scale": scale,
            "command": command([f"sweep={sweep}", f"scale={scale}"], store),
        }
        for scale in scales
        for sweep in dict.fromkeys(named)
        if (sweep, scale) not in there
    ]
    counts = dict.fromkeys(("asked", "done", "failed", "missing", "unpriced", "tokens"), "Int64")
    table = pd.DataFrame(rows, columns=COLUMNS).astype(counts)
    done = (table["missing"] == 0).fillna(False) & (table["settled"] == True)  # noqa: E712
    return table[~done.astype(bool)].reset_index(drop=True)


def command(words: Iterable[str], store: str) -> str:
    """Return the sweep of these words into `store`, in whatever store they were run before."""
    own = [word for word in words if not word.startswith("results=")]
    return shlex.join(["pipegap", "sweep", *own, store])


def _of_record(record: Record, status: dict[str, str], store: str) -> dict[str, object]:
    left = {key: trial for key, trial in record.trials.items() if status.get(key) not in FINAL}
    seconds = [trial.seconds for trial in left.values() if trial.seconds is not None]
    arms = Counter(trial.arm for trial in left.values())
    return {
        "sweep": record.sweep,
        "scale": record.scale,
        "asked": len(record.trials),
        "done": len(record.trials) - len(left),
        "failed": sum(status.get(key) == Status.FAILED for key in left),
        "missing": len(left),
        "seconds": sum(seconds) if seconds or not left else None,
        "unpriced": len(left) - len(seconds),
        "tokens": sum(trial.tokens or 0 for trial in left.values()),
        "flops": sum(trial.flops or 0 for trial in left.values()),
        "arms": ", ".join(f"{count} {arm}" for arm, count in sorted(arms.items())),
        "settled": record.settled,
        # Without what was added: a command of several sweeps did so for some of them alone.
        "command": command((w for w in record.words if w not in record.added), store),
    }


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `missing` for people: times and large numbers in words."""
    words = {
        "time": table["seconds"].map(duration, na_action="ignore"),
        "tokens": table["tokens"].map("{:,}".format, na_action="ignore"),
        "FLOPs": table["flops"].map("{:.2g}".format, na_action="ignore"),
    }
    columns = ["sweep", "scale", "asked", "done", "failed", "missing", *words, "arms", "command"]
    return table.assign(**words)[columns]


def cost(table: pd.DataFrame) -> str:
    """Return the table of `missing` in a sentence."""
    counted = table[table["missing"].fillna(0) > 0]
    never = int(table["missing"].isna().sum())
    were = "1 sweep was" if never == 1 else f"{never} sweeps were"
    open_sweeps = f"{were} never run here (dry_run=true prices them)." if never else ""
    if counted.empty:
        return open_sweeps or "Nothing is missing of what was asked for."
    sweeps = "1 sweep" if len(counted) == 1 else f"{len(counted)} sweeps"
    missing = int(counted["missing"].sum())
    trials = "1 trial" if missing == 1 else f"{missing} trials"
    return (
        f"{trials} of {sweeps} {_time(counted)}, "
        f"{counted['tokens'].sum():,} tokens, {counted['flops'].sum():.2g} floating-point "
        f"operations. {open_sweeps}"
    ).strip()


def _time(counted: pd.DataFrame) -> str:
    are = "is missing" if counted["missing"].sum() == 1 else "are missing"
    unpriced = counted["unpriced"].sum()
    if unpriced == counted["missing"].sum():
        return f"{are}: how long they take is not known"
    without = f" without {unpriced} of which it is not known" if unpriced else ""
    return f"{are}: {duration(counted['seconds'].sum())} one after the other{without}"
