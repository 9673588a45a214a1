"""A results folder → one page, tables and figures in a folder, and the text that is printed."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.report.claims_table import claims_table
from analysis.report.contents import EXPECTED, write_chapter
from analysis.report.details import write_details
from analysis.report.missing import command, cost, missing, shown
from analysis.report.overview import overview
from analysis.report.page.listing import listed
from analysis.report.page.page import Chapter, Page, html, with_lead
from analysis.report.page.tooltips import settings_by_trial
from analysis.report.provenance import makers, provenance
from analysis.report.recommendation import recommendations
from analysis.report.running import running
from analysis.report.scopes import Scope, Views, of_record, scopes
from analysis.statistics.text import gap_table, notes, printed_gaps, taxes_text
from analysis.table.load import DamagedRows, load
from analysis.table.points import settings
from analysis.table.records import Record, records
from trainer.base.atomic import write_atomically
from trainer.base.children import Worker
from trainer.base.errors import BadInput

PLACES = ["folder", "results", "out", "data.path", "data.shards", "code"]
"""Paths on one machine: they are left out of the files, which name a trial by its id."""
MANY = 2_000
"""Trials whose pictures and files take longer to make than a process takes to start."""
MOST_TRIALS = 10_000
"""Rows of the list of trials on the page."""
TRIALS = "Each opens: config, losses over training, log. What made it stands in the CSV."
LEGEND = (
    "Gap: final validation loss of an arm minus that of sync, same point and seed, nats per token; "
    "mean over n pairs that both completed, 95 % interval (Student's t). Diverged: pairs in which "
    "only the arm did. Gap removed: by the correction, same seeds, where the plain gap's interval "
    "excludes 0 (Fieller's interval). Token tax: updates to sync's loss over sync's own; a delay "
    "pays if the speed-up of the pipeline is larger."
)


def report(results: Path, out: Path, label: str | None = None, store: str = "") -> str:
    """Writes index.html, the figures and tables that it shows, trials.csv, gaps.csv, gaps.md,
    claims.csv, missing.csv and provenance.csv to `out`; returns what to print.

    It shows the whole store, with one folder per scale, or only the trials that the sweep `label`
    compares. `trials/` beside the page holds what opens on it for one trial. `store`: the value of
    `results=` in the commands that it shows, such as a URL; empty: the path `results`. Raises
    BadInput for a missing `results`, a `label` without a record, an `out` that cannot be written,
    or mixed data.
    """
    written = write_report(results, out, label, store)
    write_page(written.page, out)
    return written.text


class _Found(NamedTuple):
    """The contents of a store that a report is made of."""

    store: str
    """Its name in commands."""
    trials: pd.DataFrame
    gaps: pd.DataFrame
    asked: Sequence[Record]
    parts: Sequence[Scope]
    remarks: Sequence[str]
    left: pd.DataFrame
    """What the store lacks of what was asked for: see `missing`."""


class Written(NamedTuple):
    """A report whose page is not written yet. `text`: what to print."""

    text: str
    page: Page
    trials: pd.DataFrame


def write_report(results: Path, out: Path, label: str | None = None, store: str = "") -> Written:
    """Writes everything that `report` writes but the page, which it returns."""
    found = _find(results, label, store or str(results))
    try:
        out.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings(record=True) as caught, _worker(found) as worker:
            warnings.simplefilter("ignore", UserWarning)  # those of the gaps are remarks now
            warnings.simplefilter("always", DamagedRows)
            worker.do(write_details, found.trials, found.store, out)
            chapters = [write_chapter(scope, out, found.store, worker) for scope in found.parts]
            found = found._replace(remarks=[*found.remarks, *_said(caught)])
            page = _write(found, chapters, out, worker)
    except OSError as error:
        raise BadInput("out", out, f"must be a folder to write to ({error.strerror})") from None
    return Written(_text(found, page, out), page, found.trials)


def _worker(found: _Found) -> Worker:
    return Worker(apart=len(found.trials) >= MANY)


def _said(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """Each warning once, in a line."""
    return [*dict.fromkeys(f"warning: {warning.message}" for warning in caught)]


def _find(results: Path, label: str | None, store: str) -> _Found:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        views, asked = Views(load(results)), records(results)
        if label is None:
            parts, labels = scopes(views, asked), EXPECTED
            trials, table = views.whole()
        else:
            asked, labels = [_of_label(asked, label)], []
            parts = [of_record(views, asked[0])]
            trials, table = parts[0].whole()
        remarks = [remark for scope in parts for remark in _remarks(scope)]
    left = missing(views.store, asked, labels, store)
    return _Found(store, trials, table, asked, parts, [*_said(caught), *remarks], left)


def write_page(page: Page, out: Path, *, live: str = "") -> None:
    """Writes index.html atomically: a browser may be loading it. `live`: as of `html`."""
    write_atomically(out / "index.html", html(page, live=live).encode())


def _remarks(scope: Scope) -> Iterator[str]:
    """Remarks on each sweep by itself: it does not need the arms and seeds of others."""
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


def _write(found: _Found, chapters: Sequence[Chapter], out: Path, worker: Worker) -> Page:
    made = provenance(found.trials, found.asked)
    tables = {
        "trials": found.trials.drop(columns=PLACES, errors="ignore"),
        "gaps": found.gaps,
        "provenance": made,
        "makers": makers(made),
        "missing": found.left,
        "claims": claims_table(chapters),
    }
    worker.do(_write_tables, tables, found.remarks, out)
    lead, rest = with_lead(chapters)
    return Page(
        found.store,
        datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z"),
        _summary(found.trials),
        [overview(scope.title, scope.whole().trials) for scope in found.parts],
        [*_taxes(found.parts)],
        recommendations(found.parts[0].asked_for().trials, found.store) if found.parts else [],
        lead,
        running(found.trials),
        found.remarks,
        rest,
        listed("Missing", shown(found.left), "", "missing.csv"),
        cost(found.left),
        listed("Code, machines, data and packages", tables["makers"], "", "makers.csv"),
        listed("Trials", _listed(found.trials, made), TRIALS, "provenance.csv", most=MOST_TRIALS),
        settings_by_trial(found.trials, _specs(chapters)),
        command(["sweep=main"], found.store),
    )


def _write_tables(tables: Mapping[str, pd.DataFrame], remarks: Sequence[str], out: Path) -> None:
    lines = "".join(f"- {remark}\n" for remark in remarks)
    (out / "gaps.md").write_text(f"{gap_table(tables['gaps'])}\n\n{LEGEND}\n\n{lines}")
    for name, content in tables.items():
        content.to_csv(out / f"{name}.csv", index=False)


def _listed(trials: pd.DataFrame, made: pd.DataFrame) -> pd.DataFrame:
    """The columns of `provenance` that tell trials apart, and their settings."""
    words = made["point"].map(settings(trials))
    table = made[["trial_id", "status", "optimizer", "arm", "seed", "final_val_loss", "sweeps"]]
    table.insert(3, "setting", words)
    return table


def _specs(chapters: Sequence[Chapter]) -> list[dict[str, Any]]:
    return [spec for chapter in chapters for drawn in chapter.figures for spec in drawn.specs]


def _taxes(parts: Sequence[Scope]) -> Iterator[str]:
    for scope in parts:
        words = taxes_text(scope.asked_for().gaps)
        if words:
            yield f"token tax, {scope.title}: {words}"


def _summary(trials: pd.DataFrame) -> str:
    if trials.empty:
        return "No trials yet."
    counts = trials["status"].value_counts()
    return f"{len(trials)} trials: " + ", ".join(f"{n} {status}" for status, n in counts.items())


def _text(found: _Found, page: Page, out: Path) -> str:
    nothing = f"no trials in {found.store} yet: python -m sweeps or python -m trainer makes them"
    shown = nothing if found.trials.empty else printed_gaps(found.gaps, _terminal_width())
    parts = [shown, *page.taxes, *_claims_in_words(page.chapters), *found.remarks, page.cost]
    return "\n".join([*filter(None, parts), f"in {out}: index.html, with figures and tables"])


def _claims_in_words(chapters: Sequence[Chapter]) -> list[str]:
    return [
        f"claims of the paper, at {chapter.title}: "
        + ", ".join(f"{count} {outcome}" for outcome, count in chapter.counts)
        for chapter in chapters
        if chapter.verdicts
    ]


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
