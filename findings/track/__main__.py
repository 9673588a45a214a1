"""Makes the table of the delay track from the entries; or runs the trials that it lacks.

python -m findings.track                       # README.md, index.html and losses.svg
python -m findings.track fill results=results  # the entries without a table, in turn
"""

import html
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
from pipegap.sweeps.request.entry import TRIALS, Entry, read_entry
from pipegap.sweeps.request.expand import Trial, unique
from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.base.cli import DONE, end_with, exit_code, parse, refuse_others, split_command
from pipegap.trainer.store.snapshot import Snapshot

FOLDER = Path(__file__).parent
ENTRIES = FOLDER.parents[1] / "entries"
PAGE, SORTABLE, PICTURE = "README.md", "index.html", "losses.svg"
HEADS = (
    *("entry", "with", "arm", "loss", "score [95 %]", "gap [95 %]", "sync", "lr", "n", "diverged"),
    *("state", "time"),
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
    was stopped goes on. Returns 0."""
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
    """Writes the table into the page, the sortable page and the picture of `folder`."""
    says = {path: read_entry(path) for path in _folders(entries)}
    entered = [
        track.read_entered(path, entry.model_dump())
        for path, entry in says.items()
        if (path / TRIALS).is_file()
    ]
    missing = [path.name for path in says if not (path / TRIALS).is_file()]
    scores = track.scores(entered)
    rows = [HEADS, *(_row(score, entered) for score in scores.to_dict("records"))]
    page_path = folder / PAGE
    parts = {"table": _table(rows, scores, entered, missing, says)}
    write_atomically(page_path, filled(page_path.read_text(), parts).encode())
    write_atomically(folder / SORTABLE, _sortable(rows).encode())
    if len(scores):
        drawn = whole(plot(FIGURE, _drawn_rows(scores)))
        write_atomically(folder / PICTURE, with_font(picture(drawn)).encode())


def _row(score: Mapping[Any, Any], entered: list[track.Entered]) -> tuple[str, ...]:
    cost = next(entry.cost for entry in entered if entry.name == score["entry"])
    ends = {key: _interval(score, key) for key in ("score", "gap")}
    return (
        *(str(score["entry"]), names.optimizer(str(score["optimizer"]))),
        *(str(score["arm"]), f"{score['loss']:.4f}", ends["score"], ends["gap"]),
        *(f"{score['sync']:.4f}", f"{score['rate']:g}", str(score["n"]), str(score["diverged"])),
        *(f"{cost['state_per_parameter']:g}", f"{cost['time']:.2f}"),
    )


def _interval(score: Mapping[Any, Any], key: str) -> str:
    low, high = score[f"{key}_low"], score[f"{key}_high"]
    return f"{score[key]:+.4f} [{low:+.4f}, {high:+.4f}]"


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
    num_as_predicted = sum(_as_predicted(entry, scores) for entry in entered)
    parts = [
        f"{len(entered)} of {len(says)} entries, the newest trial of {newest:%d %B %Y}; "
        f"[sortable]({SORTABLE}). {not_run}",
        markdown([[*row] for row in rows]),
        f"Of {len(entered)} predictions of a sign {num_as_predicted} came true: the 95 % interval "
        "lies on the side that was named, or holds 0 where 0 was.",
        f"![Loss under delay against loss without]({PICTURE})",
    ]
    return names.minus("\n\n".join(parts))


def _as_predicted(entry: track.Entered, scores: pd.DataFrame) -> bool:
    """Whether the sign that the entry predicts came true with each of its optimizers."""
    predicted_sign, signs = entry.says["predicted"], []
    for table in track.losses(entry.trials).values():
        arms = [arm for arm in table.columns if arm != "sync"]
        judged_arm, base_arm = ("delay", "sync") if entry.says["optimizer"] else (arms[-1], "delay")
        difference = (
            (table[judged_arm] - table[base_arm]).replace(np.inf, np.nan).dropna().to_numpy()
        )
        low, high = track.mean_interval(difference)
        signs.append("+" if low > 0 else "-" if high < 0 else "0")
    return all(sign == predicted_sign for sign in signs)


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


def _drawn_rows(scores: pd.DataFrame) -> pd.DataFrame:
    best = scores["sync"].min()
    near_best = scores[scores["sync"] < best + WORST]
    return near_best.assign(name=near_best["entry"])[["name", "arm", "sync", "loss", "n"]]


WORST = 0.5
"""Nats above the best synchronous loss: what ends higher is in the table alone."""


def _charts(data: pd.DataFrame) -> list[alt.LayerChart]:
    low, high = data[["sync", "loss"]].min().min(), data[["sync", "loss"]].max().max()
    x = alt.X("sync:Q", title="loss without delay", scale=alt.Scale(domain=[low, high], nice=True))
    y = alt.Y("loss:Q", title="loss under delay", scale=alt.Scale(domain=[low, high], nice=True))
    base = alt.Chart(data).encode(x=x, y=y)
    dots = base.mark_point(filled=True).encode(color=alt.Color("arm:N", title=None))
    labels = base.mark_text(dx=5, align="left", fontSize=9).encode(text="name:N")
    ends = pd.DataFrame({"sync": [low, high], "loss": [low, high]})
    equal = alt.Chart(ends).mark_line(strokeDash=[4, 4], opacity=0.4).encode(x=x, y=y)
    return [equal + dots + labels]


FIGURE = Figure(
    name="track",
    title="Loss under delay against loss without",
    data=lambda trials, gaps: trials,
    charts=_charts,
)

if __name__ == "__main__":
    end_with(main)
