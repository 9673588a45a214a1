"""A results folder → one page, tables and figures in a folder, and the text that is printed."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.contents import NAMED, write_chapter
from analysis.missing import cost, missing
from analysis.notes import notes
from analysis.page import Chapter, Page, configs, html, listing
from analysis.provenance import makers, provenance
from analysis.records import Record, records
from analysis.scopes import Scope, Views, of_record, scopes
from analysis.store import load
from analysis.tables import gap_table, printed_gaps
from trainer.atomic import write_atomically
from trainer.errors import BadInput

PLACES = ["folder", "results", "out", "data.path"]
"""Where a trial lay on one machine: kept out of the files, its id says which one it is."""
LEGEND = (
    "Gap: final validation loss of an arm minus that of sync, same point and seed, nats per token; "
    "mean over n pairs that both completed, 95 % interval (Student's t below n=20, from there on "
    "bootstrap). Diverged: pairs in which only the arm did. Gap removed: by the correction, same "
    "seeds, where the plain gap's interval excludes 0 (Fieller's interval)."
)


def report(results: Path, out: Path, label: str | None = None) -> str:
    """Writes index.html, the figures and tables that it shows, trials.csv, gaps.csv, gaps.md,
    claims.csv, missing.csv and provenance.csv to `out`; returns what to print.

    Of the whole store: what each scale shows in a folder of its own. `label`: of the trials that
    this one sweep compares. Raises BadInput for a missing `results`, a `label` without a record, an
    `out` that cannot be written, or mixed data.
    """
    text, page = write_report(results, out, label)
    write_page(page, out, watched=False)
    return text


class _Found(NamedTuple):
    """What a report is made of."""

    results: Path
    trials: pd.DataFrame
    gaps: pd.DataFrame
    asked: Sequence[Record]
    parts: Sequence[Scope]
    remarks: Sequence[str]
    named: Sequence[str]
    """The sweeps that are missed where they left no record."""


def write_report(results: Path, out: Path, label: str | None = None) -> tuple[str, Page]:
    """As `report`, but for the page."""
    found = _find(results, label)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # those of the gaps: they are remarks now
            page = _write(found, out)
    except OSError as error:
        raise BadInput("out", out, f"must be a folder to write to ({error.strerror})") from None
    return _text(found, page, out), page


def _find(results: Path, label: str | None) -> _Found:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        views, asked = Views(load(results)), records(results)
        if label is None:
            parts, named = scopes(views, asked), NAMED
            trials, table = views.whole()
        else:
            asked, named = [_of_label(asked, label)], []
            parts = [of_record(views, asked[0])]
            trials, table = parts[0].whole()
        remarks = [remark for scope in parts for remark in _remarks(scope)]
    warned = dict.fromkeys(f"warning: {warning.message}" for warning in caught)
    return _Found(results, trials, table, asked, parts, [*warned, *remarks], named)


def write_page(page: Page, out: Path, *, watched: bool) -> None:
    """Writes index.html, at once as a whole: a browser may be loading it."""
    write_atomically(out / "index.html", html(page, watched=watched).encode())


def _remarks(scope: Scope) -> Iterator[str]:
    """Of each sweep by itself: what another one lacks is not missing there."""
    for record in scope.records:
        view = scope.of_records([record])
        found = [*(notes(*view) if len(view.trials) else []), *record.remarks]
        yield from (f"{record.label}: {remark}" for remark in found)
    if not scope.records:
        yield from notes(*scope.whole())


def _of_label(asked: Sequence[Record], label: str) -> Record:
    for record in asked:
        if record.label == label:
            return record
    known = ", ".join(record.label for record in asked) or "none"
    raise BadInput("label", label, f"must be a sweep that left a record in the store ({known})")


def _write(found: _Found, out: Path) -> Page:
    out.mkdir(parents=True, exist_ok=True)
    chapters = [write_chapter(scope, out) for scope in found.parts]
    lines = "".join(f"- {remark}\n" for remark in found.remarks)
    (out / "gaps.md").write_text(f"{gap_table(found.gaps)}\n\n{LEGEND}\n\n{lines}")
    found.trials.drop(columns=PLACES, errors="ignore").to_csv(out / "trials.csv", index=False)
    made = provenance(found.trials, found.asked)
    left = missing(found.trials, found.asked, found.named)
    tables = {"gaps": found.gaps, "provenance": made, "missing": left, "claims": _claims(chapters)}
    for name, content in tables.items():
        content.to_csv(out / f"{name}.csv", index=False)
    return Page(
        str(found.results),
        datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z"),
        _summary(found.trials),
        found.remarks,
        chapters,
        listing("Missing", left, "", "missing.csv"),
        cost(left),
        listing("Code, machines, data and packages", makers(made), "", "provenance.csv"),
        listing("Trials", made, "", "provenance.csv"),
        configs(found.trials, _specs(chapters)),
    )


def _specs(chapters: Sequence[Chapter]) -> list[dict[str, Any]]:
    return [spec for chapter in chapters for drawn in chapter.figures for spec in drawn.specs]


def _claims(chapters: Sequence[Chapter]) -> pd.DataFrame:
    """A row a part of a claim, at each scale."""
    rows = [
        {
            "scale": chapter.title,
            "claim": verdict.claim.statement,
            "place": verdict.claim.place,
            "verdict": verdict.outcome,
            "part": part.what,
            "says": part.outcome,
            "numbers": "; ".join(map(str, part.numbers)),
            "why": part.why,
            "rule": verdict.claim.rule,
        }
        for chapter in chapters
        for verdict in chapter.verdicts
        for part in verdict.parts
    ]
    columns = ["scale", "claim", "place", "verdict", "part", "says", "numbers", "why", "rule"]
    return pd.DataFrame(rows, columns=columns)


def _summary(trials: pd.DataFrame) -> str:
    if trials.empty:
        return "No trials yet."
    counts = trials["status"].value_counts()
    return f"{len(trials)} trials: " + ", ".join(f"{n} {status}" for status, n in counts.items())


def _text(found: _Found, page: Page, out: Path) -> str:
    nothing = f"no trials in {found.results} yet: python -m sweeps or python -m trainer makes them"
    shown = nothing if found.trials.empty else printed_gaps(found.gaps, _terminal_width())
    parts = [shown, *_told(page.chapters), *found.remarks, page.cost]
    return "\n".join([*filter(None, parts), f"in {out}: index.html, with figures and tables"])


def _told(chapters: Sequence[Chapter]) -> list[str]:
    return [
        f"claims of the paper, at {chapter.title}: "
        + ", ".join(f"{count} {outcome}" for outcome, count in chapter.counts)
        for chapter in chapters
        if chapter.verdicts
    ]


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
