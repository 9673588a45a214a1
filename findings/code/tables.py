"""The tables of gaps. Every public function is a call that a page may make."""

import pandas as pd
from scipy import stats

from analysis import best
from analysis.statistics.intervals import CONFIDENCE
from analysis.statistics.reported import reported_taxes
from analysis.statistics.tax import MAIN_ARMS, best_taxes
from analysis.statistics.text import gap_table, tax_text
from analysis.table.names import REPORTED_ARMS, arms, settings
from analysis.table.names import optimizer as name
from findings.code import cells
from findings.code.cells import (
    Groups,
    Markdown,
    Quantity,
    by_value,
    gap_of,
    groups,
    mean,
    quantity,
    sync_loss,
    table,
    tax_of,
    value_of,
)
from findings.code.published import (
    FEW,
    TINY,
    View,
    at_points,
    of_sweep,
    view,
)


def main(front: int = 0) -> Markdown:
    """The table that `python -m analysis` prints, of the README's job or of `few_updates`."""
    shown = view("front") if front else of_sweep("main", FEW)
    return Markdown(gap_table(shown.gaps).strip())


def taxes() -> Markdown:
    """Our token taxes at `few_updates`, each at the point of the lowest loss of sync."""
    rows = best_taxes(view("lengths").gaps).to_dict("records")
    lines = [
        [name(r["optimizer"]), REPORTED_ARMS[r["arm"]], tax_text(r), str(r["tax_n"])] for r in rows
    ]
    return table(["optimizer", "arm", "token tax [95 %] (from)", "n"], lines)


def taxes_of_others() -> Markdown:
    """The token taxes that others report."""
    lines = [
        [
            *(name(row["optimizer"]), REPORTED_ARMS[row["arm"]], f"{row['tax']:.2f}"),
            *(row["tax_from"], row["who"]),
        ]
        for row in reported_taxes().to_dict("records")
    ]
    return table(["optimizer", "arm", "token tax", "from", "of"], lines)


def rows(sweep: str, scale: str, columns: str, sort: str = "", key: str = "") -> Markdown:
    """One row per optimizer, or per optimizer and value of `key`.

    `columns`: `HEAD: QUANTITY WORDS; …`, a quantity alone is its own head. `sort`: an arm, by whose
    gap the rows are sorted, or a key of the trials.
    """
    shown = groups(of_sweep(sweep, scale), *([key] if key else []))
    chosen = [shown[at] for at in sorted(shown)]
    if sort:
        chosen = [group for group in chosen if sort in group.arms or sort in group.trial]
        chosen.sort(key=lambda g: g.arms[sort]["gap"] if sort in g.arms else g.trial[sort])
    heads = [column.strip().rpartition(": ") for column in columns.split(";")]
    quantities = [quantity(words) for *_, words in heads]
    lines = [[cell(group) for cell in quantities] for group in chosen]
    return table([head or words for head, _, words in heads], lines)


def every_arm(sweep: str, scale: str) -> Markdown:
    """One row per point and arm that has a pair, by optimizer, point and gap; columns that would be
    empty are left out."""
    trials, rows = of_sweep(sweep, scale)
    names, at = arms(trials), settings(trials)
    shown = rows[rows["pairs"] > 0].assign(at=rows["point"].map(at).fillna(""))
    lines = [
        [
            *(name(row["optimizer"]), row["at"], names[row["arm"]], cells.loss(row)),
            *(cells.gap(row), cells.removed(row), str(row["n"]), str(row["diverged"] or "")),
        ]
        for row in shown.sort_values(["optimizer", "at", "gap"], kind="stable").to_dict("records")
    ]
    heads = ["optimizer", "at", "arm", "sync loss", "gap", "gap removed", "n", "diverged"]
    kept = [place for place, _ in enumerate(heads) if any(line[place] for line in lines)]
    return table([heads[i] for i in kept], [[line[i] for i in kept] for line in lines])


def coefficients(sweep: str, scale: str, method: str) -> Markdown:
    """Gap and share removed against the coefficient of a correction."""
    rows = {
        at[0]: {row["coefficient"]: row for row in group.arms.values() if row["method"] == method}
        | {0: group.arms["delay"]}
        for at, group in sorted(groups(of_sweep(sweep, scale)).items())
    }
    values = sorted({value for by_coefficient in rows.values() for value in by_coefficient})
    lines = [
        [
            f"{name(optimizer)}: {said}",
            *(cell(by_coefficient.get(value)) for value in values),
            str(by_coefficient[0]["n"]),
        ]
        for optimizer, by_coefficient in rows.items()
        for said, cell in (("gap", cells.gap), ("removed", cells.removed))
    ]
    return table(["λ", "0, plain delay", *(f"{value:,g}" for value in values[1:]), "n"], lines)


PLAIN = {": sync loss": sync_loss, ": gap of the delay": gap_of("delay")}


def momentum(sweep: str, scale: str) -> Markdown:
    """Sync's loss and the gap of the delay, one column per momentum."""
    rows = groups(of_sweep(sweep, scale), "optimizer.momentum")
    return by_value("momentum", rows, PLAIN, "{:g}")


def batch_size(scale: str) -> Markdown:
    """Sync's loss and the delay's gap by batch size, at the learning rate best for sync there."""
    shown = of_sweep("batch_size", scale)
    sizes = shown.trials.drop_duplicates("point").set_index("point")["batch_size"]
    points = shown.gaps.assign(size=shown.gaps["point"].map(sizes))
    points = points.sort_values("loss_sync", kind="stable").drop_duplicates(["optimizer", "size"])
    rows = groups(at_points(shown, points["point"]), "batch_size")
    lines: dict[str, Quantity] = {": lr": value_of("optimizer.lr"), **PLAIN}
    return by_value("batch size", rows, lines, "{:g}")


def best_points(scale: str) -> Markdown:
    """Each arm of the sweep over batch sizes at its own best point of the grid."""
    return table(
        ["optimizer", "best delay minus best sync", "n", "sync's point", "the delay's point"],
        [
            [
                *(name(row["optimizer"]), cells.gap(row), str(row["n"])),
                *(row["setting_sync"], row["setting"]),
            ]
            for row in best(of_sweep("batch_size", scale).trials).to_dict("records")
        ],
    )


def _of_batch(sweep: str, scale: str, batch_size: int | None) -> View:
    shown = of_sweep(sweep, scale)
    if batch_size is None:
        return shown
    points = shown.trials.loc[shown.trials["batch_size"] == batch_size, "point"]
    return View(*(frame[frame["point"].isin(points)] for frame in shown))


def horizon(sweep: str, scale: str, batch_size: int | None = None) -> Markdown:
    """Gap and tax of each arm, one column per length; of one batch size or of all."""
    rows = groups(_of_batch(sweep, scale, batch_size), "num_updates_asked")
    lines = {
        f", {REPORTED_ARMS[arm]}: {said}": quantity(arm)
        for arm in MAIN_ARMS
        for said, quantity in (("gap", gap_of), ("token tax", tax_of))
    }
    return by_value("updates", rows, lines, "{:,}", counted=False)


def shrinking(sweep: str, scale: str, later: int, batch_size: int | None = None) -> Markdown:
    """How much larger each gap is at the shortest length, and at `later`, than at the longest,
    paired by seed."""
    rows = groups(_of_batch(sweep, scale, batch_size), "num_updates_asked")
    lengths = sorted({length for _, length in rows})
    starts = (lengths[0], later)
    lines = []
    for optimizer in sorted({optimizer for optimizer, _ in rows}):
        for arm in MAIN_ARMS:
            first, second, last = (
                _paired(rows, (optimizer, length), arm) for length in (*starts, lengths[-1])
            )
            changes = [mean(first - last), mean(second - last)]
            lines.append([f"{name(optimizer)}, {REPORTED_ARMS[arm]}", *changes, str(len(last))])
    heads = [f"{start:,} minus {lengths[-1]:,}" for start in starts]
    return table(["gap, paired by seed", *heads, "n"], lines)


def _paired(rows: Groups, at: tuple[object, ...], arm: str) -> pd.Series:
    """The gaps of an arm by seed."""
    losses = rows[at].losses
    return losses[arm] - losses["sync"]


def stages() -> Markdown:
    """The gaps of 2BW and of original PipeDream by the number of stages, and their differences."""
    losses = of_sweep("stages", TINY).trials.pivot_table(
        index="seed", columns=["optimizer", "arm", "pipeline.num_stages"], values="final_val_loss"
    )
    lines, n = [], str(len(losses))
    for optimizer in losses.columns.unique("optimizer"):
        sync, two, old = (losses[optimizer][arm] for arm in ("sync", "delay", "pipedream"))
        lines.append([f"{name(optimizer)}: sync loss", *map("{:.3f}".format, sync.mean()), "", n])
        for said, gaps in (
            ("2BW: gap", two - sync),
            ("original PipeDream: gap", old - sync),
            ("PipeDream minus 2BW, paired", old - two),
        ):
            changes = [mean(gaps[value]) for value in gaps]
            ends = mean(gaps.iloc[:, -1] - gaps.iloc[:, 0])
            lines.append([f"{name(optimizer)}, {said}", *changes, ends, n])
    heads = [f"P = {value}" for value in losses.columns.unique("pipeline.num_stages")]
    return table(["", *heads, "the most minus the fewest, paired", "n"], lines)


def regimes(only: str = "") -> Markdown:
    """The gap of the delay in few large updates, in many small ones, and in the paper's run: of
    these optimizers, or of all."""
    few, many = _regime(of_sweep("main", FEW)), _regime(of_sweep("shared_rate", TINY))
    reported = reported_taxes()
    theirs = reported[reported["who"].str.startswith("paper") & (reported["arm"] == "delay")]
    gaps_of_paper = (theirs["loss"] - theirs["loss_sync"]).set_axis(theirs["optimizer"])
    paper = {str(optimizer): f"{value:+.3f}" for optimizer, value in gaps_of_paper.items()}
    columns = (few, many, ("the paper, 360M", paper))
    rows = [
        [name(optimizer), *(shown.get(optimizer, "") for _, shown in columns)]
        for optimizer in (only.split(",") if only else many[1])
    ]
    return table(["gap of the delay", *(head for head, _ in columns)], rows)


def _regime(shown: View) -> tuple[str, dict[str, str]]:
    """What an update is, and the gap of the delay of each optimizer."""
    first = shown.trials.iloc[0]
    size = f"{first['batch_size']:g} × {first['seq_len']:g}"
    head = f"{first['num_updates']:,} updates of {size} bytes, lr {first['optimizer.lr']:g}"
    counted = {at[0]: group.arms["delay"] for at, group in groups(shown).items()}
    return head, {key: f"{cells.gap(row)} (n={row['n']})" for key, row in counted.items()}


def replication() -> Markdown:
    """Gaps of the first seeds, of the others and of all, and the standard error of the last."""
    first, other = "shared_rate tiny", "main tiny"
    before, again, both = (groups(view(*names)) for names in ((first,), (other,), (first, other)))
    lines = []
    for at in again:
        for arm in MAIN_ARMS:
            rows = [of_seeds[at].arms[arm] for of_seeds in (before, again)]
            last = both[at].arms[arm]
            half = (last["high"] - last["low"]) / 2  # of Student's interval
            error = half / stats.t.ppf((1 + CONFIDENCE) / 2, last["n"] - 1)
            counted = [f"{cells.gap(row)} (n={row['n']})" for row in rows]
            said = [name(at[0]), REPORTED_ARMS[arm], *counted]
            lines.append([*said, cells.gap(last), f"{error:.4f}"])
    heads = ["optimizer", "arm", "the first seeds", "the others", "all", "standard error of all"]
    return table(heads, lines)
