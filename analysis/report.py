"""A results folder → tables and figures in a folder, and the text that is printed."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from analysis.figures import FIGURES, save
from analysis.notes import notes
from analysis.paired import gaps
from analysis.spikes import spikes
from analysis.store import load
from analysis.tables import gap_table
from trainer.errors import BadInput

PLACES = ["folder", "results", "out", "data.path"]
"""Where a trial lay on one machine: kept out of the files, its id says which one it is."""
LEGEND = (
    "Gap: final validation loss of an arm minus that of sync, same point and seed, nats per token; "
    "mean over n pairs that both completed, 95 % interval (Student's t below n=20, from there on "
    "bootstrap). Diverged: pairs in which only the arm did. Gap removed: by the correction, same "
    "seeds, where the plain gap's interval excludes 0 (Fieller's interval)."
)


def report(
    results: Path,
    out: Path,
    trial_ids: Collection[str] | None = None,
    more: Sequence[str] = (),
) -> str:
    """Writes trials.csv, gaps.csv, gaps.md, the figures, and spikes.csv where a trial had a
    synchronous start, to `out`; returns what to print.

    `trial_ids`: only these trials of the store; `more`: remarks of whoever chose them. Nothing is
    written of an empty store. Raises BadInput for a missing `results`, an `out` that cannot be
    written, or mixed data.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        trials = load(results, trial_ids)
        table = gaps(trials)
    warned = [f"warning: {warning.message}" for warning in caught]
    if trials.empty:
        nothing = f"no trials in {results} yet: python -m sweeps or python -m trainer makes them"
        return "\n".join([nothing, *warned, *more])
    remarks = warned + notes(trials, table)
    remarks += more
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # those of the gaps: they are remarks now
            names = _write(trials, table, remarks, out)
    except OSError as error:
        raise BadInput("out", out, f"must be a folder to write to ({error.strerror})") from None
    shown = gap_table(table, width=_terminal_width()) if (table["pairs"] > 0).any() else ""
    return "\n".join(part for part in (shown, *remarks, f"in {out}: {', '.join(names)}") if part)


def _write(trials: pd.DataFrame, table: pd.DataFrame, remarks: list[str], out: Path) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    trials.drop(columns=PLACES).to_csv(out / "trials.csv", index=False)
    table.to_csv(out / "gaps.csv", index=False)
    lines = "".join(f"- {remark}\n" for remark in remarks)
    (out / "gaps.md").write_text(f"{gap_table(table)}\n\n{LEGEND}\n\n{lines}")
    names = ["trials.csv", "gaps.csv", "gaps.md"]
    if not (found := spikes(trials)).empty:
        found.to_csv(out / "spikes.csv", index=False)
        names.append("spikes.csv")
    for figure in (figure for figure in FIGURES if not figure.sweeps):
        data = figure.data(trials, table)
        if not data.empty:
            save(figure, data, out)
            names.append(f"{figure.name}.svg")
    return names


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
