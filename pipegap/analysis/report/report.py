"""A results folder → one page, tables and figures in a folder, and the text that is printed."""

import gc
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pipegap.analysis.report.answer import Asked, StoreAnswer, answer, answers
from pipegap.analysis.report.contents import (
    EXPECTED,
    Scope,
    StoreView,
    StoreViews,
    claims_table,
    scopes,
    write_chapter,
)
from pipegap.analysis.report.facts import (
    cost,
    for_people,
    makers,
    missing,
    overview,
    provenance,
    running,
    settings_by_trial,
    summary,
    write_details,
)
from pipegap.analysis.report.page.page import (
    Chapter,
    GapRow,
    Opening,
    Page,
    html,
    listed,
    with_lead,
)
from pipegap.analysis.statistics.tax import MAIN_ARMS
from pipegap.analysis.statistics.text import (
    gap_table,
    gap_text,
    printed_gaps,
    removed_text,
    tax_text,
    taxes_text,
)
from pipegap.analysis.table import names
from pipegap.analysis.table.load import as_csv
from pipegap.analysis.table.metrics import DamagedRows
from pipegap.analysis.table.points import BESIDE, settings
from pipegap.analysis.table.selection import stored
from pipegap.analysis.table.text import hanging, in_markdown, terminal_width
from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.base.children import Worker
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.records import Record

PATHS = ["folder", "results", "out", "data.path", "data.shards", "code", BESIDE]
"""Paths on one machine: they are left out of the files, which name a trial by its id."""
WARNING = "warning: "
MOST_PRINTED = 4
"""Remarks in the terminal: the page and gaps.md have all."""
MOST_LINES = 12
"""Lines of gaps in the terminal where there are several sweeps."""
MOST_GAPS = 200
"""Rows of gaps.md: gaps.csv has all."""
MANY = 50
"""Trials whose pictures and files take longer to make than a process takes to start."""
TRIALS = "Each opens: config, losses over training, log. What made it stands in the CSV."
LEGEND = (
    "Gap: final validation loss of an arm minus that of sync, same point and seed, nats per token; "
    "mean over n pairs that both completed, 95 % interval (Student's t). Diverged: pairs in which "
    "only the arm did. Gap removed: by the correction, same seeds, where the plain gap's 99 % "
    "interval excludes 0 (Fieller's, wider where it is weak; not told if wider than 300 %). Token "
    "tax: updates to sync's loss over sync's own; a delay pays if the speed-up of the pipeline is "
    "larger."
)


@contextmanager
def _garbage_waits() -> Iterator[None]:
    """Python does not look for circles of garbage: among all objects of 10,000 trials that takes an
    eighth of their report's time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_garbage_waits()
def report(
    results: Path | Sequence[Path],
    out: Path,
    label: str | None = None,
    store: str = "",
    question: Asked | None = None,
) -> str:
    """Write a report to `out` and return what to print.

    The files are index.html, the figures and tables that it shows, trials.csv, gaps.csv, gaps.md,
    claims.csv, missing.csv and provenance.csv. `trials/` beside the page holds what opens on it for
    one trial. The report shows the whole store, with one folder per scale, or only the trials that
    the sweep `label` compares. `store` is the value of `results=` in the commands that the report
    shows, such as a URL, if it is not the path `results`. `question`: what the sweep `label` asks
    besides. The trials of several `results` are compared together: see `stored`. Raises BadInput
    for a missing `results`, a `label` without a record, an `out` that cannot be written, or mixed
    data.
    """
    # What is warned of becomes remarks on the page: its readers see no terminal.
    with warnings.catch_warnings(record=True) as on_reading:
        warnings.simplefilter("always", UserWarning)
        stores = [results] if isinstance(results, Path) else results
        contents = _Contents.of(StoreViews(*stored(stores)), label)
    store = store or str(stores[0])
    word, trials = f"results={store}", contents.view.trials
    try:
        out.mkdir(parents=True, exist_ok=True)
        with (
            warnings.catch_warnings(record=True) as caught,
            Worker(apart=len(trials) >= MANY) as drawing,
        ):
            warnings.simplefilter("ignore", UserWarning)  # those of the gaps are remarks now
            warnings.simplefilter("always", DamagedRows)
            # First, so that another process writes these files while chapters are made here.
            drawing.do(write_details, contents.trials, word, out)
            chapters = [write_chapter(part, out, word, drawing) for part in contents.parts]
            remarks = [*_lines(on_reading), *contents.remarks, *_lines(caught)]
            contents = contents._replace(remarks=remarks)
            page = _write(contents, chapters, word, out, drawing)
            # Atomically, for a browser may load it; the last pictures are drawn meanwhile.
            write_atomically(out / "index.html", html(page).encode())
    except OSError as error:
        raise BadInput("out", out, f"must be a folder to write to ({error.strerror})") from None
    # A sweep's answer is for the pipeline that its file asks about.
    printed_texts = [page.answer.printed] if label is None else []
    if question is not None:
        [scope] = contents.parts
        printed_texts = [*answers(question, scope.asked_for().trials, contents.records, store, out)]
    return _text(contents, page, out, printed_texts)


def _lines(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """Return each warning once, in a line."""
    return [*dict.fromkeys(f"{WARNING}{warning.message}" for warning in caught)]


class _Contents(NamedTuple):
    """The contents of a store that a report is made of."""

    store: pd.DataFrame
    """Every trial of the store."""
    view: StoreView
    """The trials of the report, and their gaps."""
    trials: pd.DataFrame
    """These trials, and those that a sweep asked for and no table compares: the page lists all."""
    records: Sequence[Record]
    parts: Sequence[Scope]
    expected: Sequence[str]
    """Sweeps that the report misses if they left no record."""
    remarks: Sequence[str]

    @property
    def summary(self) -> str:
        """How many trials there are, also those that no table compares."""
        compared = frozenset[str]().union(*(scope.trial_ids for scope in self.parts))
        of_sweeps = frozenset[str]().union(*(record.trials for record in self.records))
        is_shown = self.store["trial_id"].isin(compared | of_sweeps)
        return summary(self.store[is_shown], compared, of_sweeps)

    @classmethod
    def of(cls, views: StoreViews, label: str | None) -> "_Contents":
        """Return the contents of a store, or what the sweep `label` compares of it."""
        parts = scopes(views, label)
        remarks = [remark for scope in parts for remark in scope.remarks()]
        if label is None:
            # Trials of no sweep, such as those of one's own loop, ask for no sweep of the paper.
            expected = EXPECTED if views.records or views.store.empty else []
            whole = views.whole()
            return cls(views.store, whole, whole.trials, views.records, parts, expected, remarks)
        [scope] = parts
        trials = scope.asked_for().trials
        return cls(views.store, scope.whole(), trials, scope.records, parts, [], remarks)


def _write(
    contents: _Contents, chapters: Sequence[Chapter], word: str, out: Path, worker: Worker
) -> Page:
    sweeps_left = missing(contents.store, contents.records, contents.expected, word)
    provenance_rows = provenance(contents.trials, contents.records)
    tables = {
        "trials": contents.view.trials.drop(columns=PATHS, errors="ignore"),
        "gaps": contents.view.gaps,
        "provenance": provenance_rows,
        "makers": makers(provenance_rows),
        "missing": sweeps_left,
        "claims": claims_table(chapters),
    }
    worker.do(_write_tables, tables, contents.remarks, out)
    lead, other_figures = with_lead(chapters)
    trials = _trials(contents.trials, provenance_rows)
    arms = names.arms(contents.trials)
    specs = [spec for chapter in chapters for drawn in chapter.figures for spec in drawn.specs]
    return Page(
        source=word.removeprefix("results="),
        date=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z"),
        summary=contents.summary,
        opening=_opening(contents, chapters),
        answer=_answer(contents, sweeps_left, word),
        overviews=[overview(scope.title, scope.whole().trials) for scope in contents.parts],
        taxes=[
            f"token tax, {scope.title}: {words}"
            for scope in contents.parts
            if (words := taxes_text(scope.asked_for().gaps))
        ],
        lead=lead,
        running=running(contents.view.trials),
        remarks=contents.remarks,
        chapters=other_figures,
        missing=listed("Missing", for_people(sweeps_left), "", "missing.csv"),
        cost=cost(sweeps_left),
        makers=listed("Code, machines, data and packages", tables["makers"], "", "makers.csv"),
        trials=listed("Trials", trials, TRIALS, "provenance.csv", arms=arms, most=10_000),
        configs=settings_by_trial(contents.view.trials, specs),
    )


def _opening(contents: _Contents, chapters: Sequence[Chapter]) -> Opening | None:
    """Return what the page of one sweep begins with."""
    # A page of several sweeps begins with the answer: they have no question in common.
    if len(contents.records) != 1:
        return None
    [record] = contents.records
    # The claims that the sweep was made for: a chapter may judge others on its trials.
    verdicts = [verdict for chapter in chapters for verdict in chapter.verdicts]
    verdicts_of_sweep = [verdict for verdict in verdicts if record.sweep in verdict.claim.sweeps]
    return Opening(
        record.question or f"The sweep {record.sweep}",
        _gap_rows(contents.parts[0].asked_for().gaps),
        verdicts_of_sweep,
        record.verdict,
    )


def _gap_rows(gaps: pd.DataFrame) -> list[GapRow]:
    """Return one row per optimizer that has a pair: MAIN_ARMS at its best setting of sync."""
    paired = gaps[(gaps["pairs"] > 0) & gaps["arm"].isin(MAIN_ARMS)]
    rows = []
    for optimizer, of_optimizer in paired.groupby("optimizer", sort=False):
        best = of_optimizer.sort_values("loss_sync", kind="stable")["point"].iloc[0]
        of_best = of_optimizer[of_optimizer["point"] == best].drop_duplicates("arm")
        by_arm: dict[str, dict[str, Any]] = of_best.set_index("arm").to_dict("index")
        delay, feedback = (by_arm.get(arm) for arm in MAIN_ARMS)
        texts = [
            "" if row is None else names.minus(text(row))
            for row, text in (
                (delay, gap_text),
                (feedback, gap_text),
                (feedback, removed_text),
                # Without `(slope)`, which says what a tax is from.
                (feedback or delay, lambda row: tax_text(row).rpartition(" (")[0]),
            )
        ]
        rows.append(GapRow(names.optimizer(optimizer), *texts))
    return rows


def _answer(contents: _Contents, sweeps_left: pd.DataFrame, word: str) -> StoreAnswer:
    """Return the answer of the first part of the report with pairs that might decide, else that of
    the first: the first part that decides would be one more try at 5 % for each part."""
    views = [(scope.title, scope.asked_for().trials) for scope in contents.parts]
    views = views or [("", contents.view.trials)]
    answers = [answer(*view, contents.records, sweeps_left, word) for view in views]
    return next((of_part for of_part in answers if of_part.is_compared), answers[0])


def _write_tables(tables: Mapping[str, pd.DataFrame], remarks: Sequence[str], out: Path) -> None:
    lines = "".join(f"- {in_markdown(remark)}\n" for remark in remarks)
    paired = tables["gaps"][tables["gaps"]["pairs"] > 0]
    table, num_left = gap_table(paired[:MOST_GAPS]), len(paired) - MOST_GAPS
    more = f"\n\n{num_left} more rows: gaps.csv" if num_left > 0 else ""
    (out / "gaps.md").write_text(f"{table}{more}\n\n{LEGEND}\n\n{lines}", "utf-8")
    for name, content in tables.items():
        # `load` reads the table of trials again, so its texts must stay texts.
        text = as_csv(content) if name == "trials" else content.to_csv(index=False)
        (out / f"{name}.csv").write_text(text, "utf-8", newline="")


def _trials(trials: pd.DataFrame, provenance_rows: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of `provenance` that tell trials apart, and their settings."""
    table = provenance_rows.assign(setting=provenance_rows["point"].map(settings(trials)))
    names_before = ["trial_id", "status", "optimizer", "setting"]
    return table[[*names_before, "arm", "seed", "final_val_loss", "sweeps"]]


def _text(contents: _Contents, page: Page, out: Path, answer: Sequence[str]) -> str:
    """Return what is printed, the answer last."""
    files = f"in {out}: index.html, with figures and tables"
    if contents.view.trials.empty:
        nothing = f"no trials in {page.source} yet: pipegap sweep or pipegap trial makes some"
        return "\n".join([nothing, *contents.remarks, page.cost, files])
    gaps_text = printed_gaps(contents.view.gaps, width := terminal_width())
    claims = _claims_in_words(page.chapters)
    # A table of many sweeps would push all that follows off the screen.
    if len(contents.records) > 1 and gaps_text.count("\n") > MOST_LINES:
        gaps_text = f"{page.summary}; {len(contents.view.gaps)} gaps: {out}/gaps.md"
    texts = filter(None, [*claims, *_few(contents.remarks, out), page.cost, files])
    return "\n".join([*filter(None, [gaps_text, hanging("\n".join(texts), width)]), *answer])


def _few(remarks: Sequence[str], out: Path) -> list[str]:
    """Return the remarks if they are few, else the warnings and where the others stand."""
    if len(remarks) <= MOST_PRINTED:
        return [*remarks]
    warned = [remark for remark in remarks if remark.startswith(WARNING)][:MOST_PRINTED]
    return [*warned, f"{len(remarks) - len(warned)} more remarks on single sweeps: {out}/gaps.md"]


def _claims_in_words(chapters: Sequence[Chapter]) -> list[str]:
    return [
        f"claims of the paper, at {chapter.title}: "
        + ", ".join(f"{count} {outcome}" for outcome, count in chapter.counts)
        for chapter in chapters
        if chapter.decided
    ]
