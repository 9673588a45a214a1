"""Everything that a results folder says: tables, figures, and a summary to print."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from analysis.figures import save_figures
from analysis.gaps import gaps, missing
from analysis.load import load
from analysis.tables import gap_rows, markdown


def report(results: Path, out: Path, trial_ids: Collection[str] | None = None) -> str:
    """Writes trials.csv, gaps.csv, gaps.md and the figures into `out`; returns the summary.

    `trial_ids` narrows it to those trials. An empty or partial store gives a shorter report.
    Raises FileNotFoundError without a results folder.
    """
    frame = load(results)
    if trial_ids is not None and not frame.empty:
        frame = frame[frame["trial_id"].isin(list(trial_ids))]
    if frame.empty:
        return f"{results} holds no trials yet"
    out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(out / "trials.csv", index=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = gaps(frame)
        figures = save_figures(frame, out)
    table.to_csv(out / "gaps.csv", index=False)
    lines = [_counts(Counter(frame["status"]))]
    if table.empty:
        lines.append("no pair of a sync and a delayed trial has finished yet: no gap")
    else:
        text = markdown(gap_rows(table, frame))
        (out / "gaps.md").write_text(text + "\n")
        lines += ["", text, ""]
    lines += sorted({f"warning: {warning.message}" for warning in caught})
    lines += missing(frame)
    written = "gaps.md, gaps.csv, trials.csv" + "".join(f", {path.name}" for path in figures)
    return "\n".join([*lines, f"tables and figures are in {out}: {written}"])


def _counts(statuses: Counter[str]) -> str:
    listed = ", ".join(f"{count} {status}" for status, count in statuses.items())
    return f"{sum(statuses.values())} trials: {listed}"
