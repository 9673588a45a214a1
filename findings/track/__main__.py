"""Makes the table of the delay track from the entries; or runs the trials that it lacks.

python -m findings.track                       # README.md, index.html and losses.svg
python -m findings.track fill results=results  # the entries without a table, in turn
"""

import html
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from findings.front import filled, markdown
from pipegap.analysis import track
from pipegap.analysis.figures.figure import Figure, picture, plot, whole, with_font
from pipegap.analysis.report.page import page
from pipegap.analysis.table import names
from pipegap.sweeps.commands.enter import enter, plan_of
from pipegap.sweeps.commands.verify import run_here
from pipegap.sweeps.request.entry import LEVELS, TRIALS, Entry, read_entry
from pipegap.sweeps.request.expand import Trial, unique
from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.base.cli import DONE, end_with, exit_code, parse, refuse_others, split_command
from pipegap.trainer.store.snapshot import Snapshot

FOLDER = Path(__file__).parent
ENTRIES = FOLDER.parents[1] / "entries"
PAGE, SORTABLE, PICTURE = "README.md", "index.html", "losses.svg"
HEADS = (
    *("entry", "with", "arm", "loss", "score [95 %]", "gap [95 %]", "tax [95 %]", "sync", "lr"),
    *("n", "diverged", "state", "time"),
)
KEYS = """keys of fill:
  results=PATH   the store of the trials (default: results)
  only=NAMES     of these entries alone: adamw,muon"""


def main() -> int:
    """Runs the command; returns the exit code."""
    return exit_code("python -m findings.track", _command)


def _command() -> int:
    command, words = split_command(sys.argv[1:], ("table", "fill"), "table")
    values = parse(words, "python -m findings.track", __doc__ or "", KEYS)
    if command == "fill":
        results, only = values.pop("results", "results"), values.pop("only", "")
        refuse_others(values, "python -m findings.track fill")
        return fill(results, [name for name in only.split(",") if name])
    refuse_others(values, "python -m findings.track")
    write(ENTRIES, FOLDER)
    return DONE


def fill(results: str, only: list[str]) -> int:
    """Trains the entries without a table, each with its table afterwards, then makes the page. What
    was stopped goes on. Returns 0.

    The page comes last: a changed page would mark the commit of all later trials as dirty."""
    for folder in [ENTRIES / name for name in only] or _folders(ENTRIES):
        if (folder / TRIALS).is_file():
            continue
        while todo := _todo(folder, results):
            print(f"{folder.name}: {len(todo)} trials", flush=True)
            run_here(todo, folder)
        print(enter(folder, results, []), flush=True)
    write(ENTRIES, FOLDER)
    return DONE


def _todo(folder: Path, results: str) -> list[Trial]:
    """The trials that can run now: the arms come after the learning rate is chosen. They need no
    cluster, which a busy machine may not start."""
    snapshot = Snapshot()
    runnable = plan_of(folder, results, [], snapshot).runnable
    return [trial for trial in unique(runnable) if snapshot.finished(trial) is None]


def _folders(entries: Path) -> list[Path]:
    return sorted(path.parent for path in entries.glob("*/entry.yaml"))


def write(entries: Path, folder: Path) -> None:
    """Writes the tables into the page, the sortable page and the picture of `folder`."""
    says = {path: read_entry(path) for path in _folders(entries)}
    missing = [path.name for path in says if not (path / TRIALS).is_file()]
    entered, with_levels = (_entered(says, name) for name in (TRIALS, LEVELS))
    best = track.best_sync(entered)
    scores = _named(track.scores(entered, best), entered)
    rows = [HEADS, *(_row(score, entered) for score in scores.to_dict("records"))]
    page_path = folder / PAGE
    parts = {
        "table": _table(rows, scores, entered, missing, says),
        "levels": _levels(with_levels, best),
    }
    write_atomically(page_path, filled(page_path.read_text(), parts).encode())
    write_atomically(folder / SORTABLE, _sortable(rows).encode())
    if len(scores):
        drawn = whole(plot(FIGURE, _drawn_rows(scores)))
        write_atomically(folder / PICTURE, with_font(picture(drawn)).encode())


def _entered(says: Mapping[Path, Entry], table: str) -> list[track.Entered]:
    """The entries that have a table of this name."""
    return [
        track.read_entered(path, entry.model_dump(), table)
        for path, entry in says.items()
        if (path / table).is_file()
    ]


def _named(scores: pd.DataFrame, entered: list[track.Entered]) -> pd.DataFrame:
    """The scores with the names of the arms for people in place of their labels."""
    names_by_label: dict[str, str] = {}
    for entry in entered:
        names_by_label |= names.arms(entry.trials)
    return scores.assign(arm=[names_by_label[label] for label in scores["arm"]])


def _row(score: Mapping[Any, Any], entered: list[track.Entered]) -> tuple[str, ...]:
    cost = {entry.name: entry.cost for entry in entered}[str(score["entry"])]
    return (
        *_losses(score),
        *(f"{score['sync']:.4f}", f"{score['rate']:g}", str(score["n"]), str(score["diverged"])),
        *(f"{cost['state_per_parameter']:g}", f"{cost['time']:.2f}"),
    )


def _losses(score: Mapping[Any, Any]) -> tuple[str, ...]:
    """What an arm is, its loss, score, gap and token tax."""
    return (
        *(str(score["entry"]), names.optimizer(str(score["optimizer"])), str(score["arm"])),
        *(f"{score['loss']:.4f}", *(_interval(score, key, "+.4f") for key in ("score", "gap"))),
        _interval(score, "tax", ".2f") if np.isfinite(score["tax"]) else _no_tax(score),
    )


def _interval(score: Mapping[Any, Any], key: str, form: str) -> str:
    low, high = score[f"{key}_low"], score[f"{key}_high"]
    return f"{score[key]:{form}} [{low:{form}}, {high:{form}}]"


def _no_tax(score: Mapping[Any, Any]) -> str:
    """`> 2` or `< 1` of a tax beyond the lengths that were run, else a dash."""
    limit = re.search(r"\b(above|below) ([\d.]+)", score["tax_why"])
    return f"{LIMITS[limit[1]]} {limit[2]}" if limit else "–"


LIMITS = {"above": ">", "below": "<"}
"""Signs of the words by which `statistics.tax` says that a tax is not among the lengths."""


def _table(
    rows: list[tuple[str, ...]],
    scores: pd.DataFrame,
    entered: list[track.Entered],
    missing: list[str],
    says: dict[Path, Entry],
) -> str:
    """The part of the page between its marks."""
    not_run = f"Not yet run: {', '.join(missing)}." if missing else "All entries have been run."
    if not len(scores):
        return f"No entry has been run yet. {not_run}"
    newest = max(entry.trials["finished_at"].max() for entry in entered)
    num_as_predicted = sum(map(_as_predicted, entered))
    parts = [
        f"{len(entered)} of {len(says)} entries, the newest trial of {newest:%d %B %Y}; "
        f"[sortable]({SORTABLE}). {not_run}",
        markdown([[*row] for row in rows]),
        f"Of {len(entered)} predictions of a sign {num_as_predicted} came true: the 95 % interval "
        "lies on the side that was named, or holds 0 where 0 was.",
        f"![Loss under delay against loss without]({PICTURE})",
    ]
    if undrawn := [*scores.loc[~_is_drawn(scores), "entry"].unique()]:
        limit = f"their synchronous loss is more than {WORST} above the best"
        parts.append(f"Not in the picture: {', '.join(undrawn)}; {limit}.")
    return names.minus("\n\n".join(parts))


def _levels(entered: list[track.Entered], best: "pd.Series[float]") -> str:
    """The table of longer delays, by entry and then by delay; scores are measured from `best`."""
    if not entered:
        return "No entry has been run at longer delays yet."
    scores = track.scores(entered, best)
    order = {label: place for place, label in enumerate(_by_delay(entered))}
    in_order = scores.assign(place=scores["arm"].map(order)).sort_values(["entry", "place"])
    of_levels = [
        [*_losses(score), str(score["n"]), str(score["diverged"])]
        for score in _named(in_order, entered).to_dict("records")
    ]
    return names.minus(markdown([[*HEADS[:7], "n", "diverged"], *of_levels]))


def _by_delay(entered: list[track.Entered]) -> list[str]:
    """The labels of all arms, the shortest delay first, of two the arm without a correction."""
    trials = pd.concat([entry.trials for entry in entered])
    is_corrected = trials["correction"] != "none"
    ordered = trials.assign(is_corrected=is_corrected).sort_values(["delay", "is_corrected"])
    return [*ordered["arm"].unique()]


def _as_predicted(entry: track.Entered) -> bool:
    """Whether the sign that the entry predicts came true with each of its optimizers."""
    signs = []
    for table in track.losses(entry.trials).values():
        plain, *corrected = sorted(
            (arm for arm in table.by_arm.columns if arm != "sync"),
            key=lambda arm: arm in track.corrected_arms(entry),
        )
        judged, base = (plain, "sync") if entry.says["optimizer"] else (corrected[0], plain)
        difference = table.by_arm[judged] - table.by_arm[base]
        finite = difference.replace(np.inf, np.nan).dropna().to_numpy()
        low, high = track.mean_interval(finite)
        signs.append("+" if low > 0 else "-" if high < 0 else "0")
    return all(sign == entry.says["predicted"] for sign in signs)


SORTED = Template("""\
<!doctype html>
<html lang="en"><meta charset="utf-8"><title>The delay track</title>
<style>$style body { font: 15px sans-serif; margin: 2em; } td { white-space: nowrap; }</style>
<h1>The delay track</h1>
<p>Losses in nats per token. Click a head to sort. What the columns mean, and the rules:
docs/track.md.</p>
<table id="track" class="display"><thead><tr>$heads</tr></thead><tbody>
$rows
</tbody></table>
<script>$script</script>
<script>new DataTable("#track", { paging: false, order: [] });</script>
</html>
""")


def _sortable(rows: list[tuple[str, ...]]) -> str:
    """A page that needs no other file: its cells sort by their first number."""
    style, script = page.tables_alone()
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[1:])
    return SORTED.substitute(
        style=style,
        script=script,
        heads="".join(f"<th>{html.escape(head)}</th>" for head in rows[0]),
        rows=body,
    )


def _cell(text: str) -> str:
    first = text.partition(" ")[0]
    return f'<td data-order="{html.escape(first)}">{html.escape(text)}</td>'


# The picture: what a delay leaves of an optimizer.


WORST = 0.35
"""Nats above the best synchronous loss: what ends higher is in the table alone."""


def _is_drawn(scores: pd.DataFrame) -> "pd.Series[bool]":
    return scores["sync"] < scores["sync"].min() + WORST


def _drawn_rows(scores: pd.DataFrame) -> pd.DataFrame:
    near_best = scores[_is_drawn(scores)]
    # Of a correction the dots of three optimizers have to be told apart.
    is_correction = near_best.groupby("entry")["optimizer"].transform("nunique") > 1
    of_optimizer = near_best["entry"] + " (" + near_best["optimizer"].map(names.optimizer) + ")"
    name = near_best["entry"].where(~is_correction, of_optimizer)
    kind = near_best["arm"].where(~is_correction, "delay + another correction")
    rows = near_best.assign(name=name, arm=kind)[["name", "arm", "sync", "loss", "n"]]
    # The arms of an entry lie above each other: the highest dot alone has the name.
    is_highest = rows["loss"] == rows.groupby("name")["loss"].transform("max")
    return rows.assign(label=rows["name"].where(is_highest, ""))


SIDE = 460
"""Pixels: forty names need more room than the figures of a report."""


def _charts(data: pd.DataFrame) -> list[alt.LayerChart]:
    low, high = data[["sync", "loss"]].min().min(), data[["sync", "loss"]].max().max()
    x = alt.X("sync:Q", title="loss without delay", scale=alt.Scale(domain=[low, high], nice=True))
    y = alt.Y("loss:Q", title="loss under delay", scale=alt.Scale(domain=[low, high], nice=True))
    base = alt.Chart(data).encode(x=x, y=y)
    dots = base.mark_point(filled=True).encode(color=alt.Color("arm:N", title=None))
    labels = base.mark_text(dx=5, align="left", fontSize=9).encode(text="label:N")
    ends = pd.DataFrame({"sync": [low, high], "loss": [low, high]})
    equal = alt.Chart(ends).mark_line(strokeDash=[4, 4], opacity=0.4).encode(x=x, y=y)
    return [(equal + dots + labels).properties(width=SIDE, height=SIDE)]


FIGURE = Figure(
    name="track",
    title="Loss under delay against loss without",
    data=lambda trials, gaps: trials,
    charts=_charts,
)

if __name__ == "__main__":
    end_with(main)
