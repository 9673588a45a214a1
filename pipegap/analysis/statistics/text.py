"""The table of gaps in words: Markdown in files, a ruled table on a terminal, and remarks on it."""

import io
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from pipegap.analysis.statistics.gaps import INACTIVE, SHORT
from pipegap.analysis.statistics.pairs import ends_text, share_text
from pipegap.analysis.statistics.tax import MAIN_ARMS, best_taxes
from pipegap.analysis.table import names
from pipegap.analysis.table.text import in_markdown, packed
from pipegap.trainer.base.errors import Status, some
from pipegap.trainer.folder.wellformed import failures

Cells = Mapping[Any, Any]

REASONS = {
    SHORT: "the run is short beside the memory of the momentum",
    INACTIVE: "the decay is too small for the length of the run to do much",
}


def gap_text(row: Cells) -> str:
    """`+0.2380 [+0.2120, +0.2640]`; `+0.2380 n=1` for a single pair; `—` for none."""
    return f"{row['gap']:+.4f}{_interval(row, 'low', 'high', '+.4f')}" if row["n"] else "—"


def tax_text(row: Cells) -> str:
    """`1.32 [1.20, 1.45] (lengths)`, with what it is from; `1.32 n=1 (slope)`; empty for none."""
    if not row["tax_n"]:
        return ""
    return f"{row['tax']:.2f}{_interval(row, 'tax_low', 'tax_high', '.2f')} ({row['tax_from']})"


def taxes_text(gaps: pd.DataFrame) -> str:
    """The `best_taxes` of MAIN_ARMS in a line, `AdamW delay 2.34 [1.85, 3.18] (slope), …`; without
    any the reason that most rows have, and nothing without a pair."""
    paired = gaps[(gaps["pairs"] > 0) & gaps["arm"].isin(MAIN_ARMS)]
    if paired.empty:
        return ""
    best = _named(best_taxes(paired)).to_dict("records")
    if not best:
        return f"not enough data: {paired['tax_why'].mode()[0]}"
    return ", ".join(f"{row['optimizer']} {row['arm']} {tax_text(row)}" for row in best)


def diverged_text(row: Cells) -> str:
    """`1 of 3`; empty if none did."""
    return f"{row['diverged']} of {row['pairs']}" if row["diverged"] else ""


def _interval(row: Cells, low: str, high: str, form: str) -> str:
    return ends_text(row[low], row[high], form) or " n=1"


def _loss(name: str) -> Callable[[Cells], str]:
    return lambda row: "—" if math.isnan(row[name]) else f"{row[name]:.4f}"


def removed_text(row: Cells) -> str:
    """`80% [35%, 140%]`; empty for an arm that removes none."""
    if not row["removed_n"]:
        return ""
    return share_text(row["removed"], row["removed_low"], row["removed_high"])


def _plain(name: str) -> Callable[[Cells], str]:
    return lambda row: str(row[name])


TEXTS: Mapping[str, Callable[[Cells], str]] = {
    "optimizer": _plain("optimizer"),
    "setting": _plain("setting"),
    "arm": _plain("arm"),
    "stages": _plain("num_stages"),
    "microbatches": _plain("num_microbatches"),
    "sync loss": _loss("loss_sync"),
    "loss": _loss("loss"),
    "gap [95 %]": gap_text,
    "n": _plain("n"),
    "diverged": diverged_text,
    "gap removed [95 %]": removed_text,
    "token tax [95 %]": tax_text,
}
LOSSES = ("sync loss", "loss")
"""Columns that are the first to be left out on a narrow terminal: the gap is their difference."""
LAST = ("token tax [95 %]", "gap removed [95 %]")
OPTIONAL = ("diverged", "token tax [95 %]")
"""Columns that are left out if they are empty in all rows."""


def gap_table(gaps: pd.DataFrame, *, width: int | None = None) -> str:
    """The rows that have a pair: Markdown, or for a terminal a ruled table without empty columns.

    Where `width` columns are too few, columns are left out and named below the table: LOSSES, then
    those of one value, then LAST one by one. Where that is no help each row stands by itself: no
    cell is broken.
    """
    rows = _named(gaps)[gaps["pairs"] > 0].to_dict("records")
    cells = {name: [text(row) for row in rows] for name, text in TEXTS.items()}  # by column
    if width is None:
        cells = {name: [*map(in_markdown, column)] for name, column in cells.items()}
    settings = ("setting", "stages", "microbatches")
    constant = [name for name in settings if len({*cells[name]}) <= 1]
    # In a file only OPTIONAL columns are left out, on a terminal every empty one.
    empty = [name for name in (OPTIONAL if width is None else cells) if not any(cells[name])]
    columns_shown = [name for name in cells if name not in (*constant, *empty)]
    if width is None:
        return _ruled(columns_shown, cells, box.MARKDOWN)
    constant = [n for n in columns_shown if len(rows) > 1 and len({*cells[n]}) == 1]
    in_order = [*dict.fromkeys([*LOSSES, *constant, *LAST])]
    for num_left_out in (0, len(LOSSES), *range(len(in_order) - len(LAST), len(in_order) + 1)):
        left_out = [name for name in in_order[:num_left_out] if name in columns_shown]
        text = _ruled([n for n in columns_shown if n not in left_out], cells, box.SIMPLE_HEAD)
        if max(map(len, text.splitlines())) <= width:
            words = [f"{n} {cells[n][0]}" if n in constant else n for n in left_out]
            return f"{text}\n  not shown: {', '.join(words)}" if words else text
    lines = zip(*(cells[name] for name in columns_shown), strict=True)
    without_head = ("optimizer", "setting", "arm")
    return "\n".join(packed(columns_shown, values, width, without_head) for values in lines)


def _ruled(heads: Sequence[str], cells: Mapping[str, Sequence[str]], style: box.Box) -> str:
    table = Table(*heads, box=style)
    for values in zip(*(cells[name] for name in heads), strict=True):
        table.add_row(*values)
    buffer = io.StringIO()  # so wide that no cell of a Markdown table is broken
    Console(file=buffer, width=10_000, color_system=None, markup=False).print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().strip("\n").splitlines())


def _named(gaps: pd.DataFrame) -> pd.DataFrame:
    """The table with optimizers and arms as people write them."""
    return gaps.assign(
        optimizer=gaps["optimizer"].map(names.optimizer), arm=gaps["arm"].map(names.arms(gaps))
    )


def printed_gaps(gaps: pd.DataFrame, width: int | None) -> str:
    """`gap_table`, or a line that says it is too long; empty while there is no pair."""
    num_rows = int((gaps["pairs"] > 0).sum())
    if num_rows > 60:
        return f"{num_rows} gaps: too many to print, the report has them"
    return gap_table(gaps, width=width) if num_rows else ""


def notes(trials: pd.DataFrame, gaps: pd.DataFrame, *, asks_pairs: bool = True) -> Iterator[str]:
    """One line per remark; none if every trial finished and every pair is there.

    Points outside of the paper's regime have a line per reason, and what is missing has a line per
    arm, however many points lack it. `asks_pairs`: whether trials without any pair are remarked on.
    """
    yield from failed_lines(trials)
    if folders := trials.loc[trials["status"] == Status.UNFINISHED, "folder"].tolist():
        yield f"{len(folders)} unfinished, left out: {some(folders)}"
    for row in gaps[gaps["sync_diverged"] > 0].to_dict("records"):
        seeds = f"{row['sync_diverged']} seeds of {_name(row)} {row['arm']}"
        yield f"{seeds} are left out: their sync trial diverged"
    points = gaps.drop_duplicates("point")
    for reason, why in REASONS.items():
        rows = points[points["regime"].str.contains(reason, regex=False)]
        if len(rows):
            outside = dict.fromkeys(map(_name, rows.to_dict("records")))
            yield f"outside of the paper's regime, {reason} ({why}): {some(list(outside))}"
    for column, arm in (("missing_seeds", gaps["arm"]), ("missing_sync_seeds", "sync")):
        rows = gaps.assign(lacking=arm)[gaps[column] != ""]
        for name, group in rows.groupby("lacking"):
            where = [f"{_name(row)} seeds {row[column]}" for row in group.to_dict("records")]
            yield f"{name} is missing: {some(list(dict.fromkeys(where)))}"
    if asks_pairs and not (gaps["pairs"] > 0).any():
        arms = ", ".join(sorted(trials["arm"].unique()))
        yield f"no pairs yet, and so no gap: a sync trial and another arm at one seed (got: {arms})"


def failed_lines(trials: pd.DataFrame) -> Iterator[str]:
    """Yield a line per reason for which trials failed."""
    failed = trials[trials["status"] == Status.FAILED].fillna({"error": ""})
    rows = ({str(key): value for key, value in row.items()} for row in failed.to_dict("records"))
    return failures(((f"trial {row['trial_id']}", row) for row in rows), len(trials))


def _name(row: Mapping[Hashable, object]) -> str:
    return f"{row['optimizer']} ({row['setting']})" if row["setting"] else str(row["optimizer"])
