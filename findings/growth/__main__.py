"""Makes the page and the picture of this study from its table, by the rule in sweep.yaml.

python -m findings.growth
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from findings.front import filled, markdown
from findings.study import PICTURE, losses
from pipegap.analysis import load
from pipegap.analysis.figures.figure import Chart, Figure, picture, plot, whole, with_font
from pipegap.analysis.figures.panels import NUMBER, gap_axis, titled
from pipegap.analysis.figures.style import legend, optimizer_styles, rounded
from pipegap.analysis.statistics.pairs import (
    CONFIDENCE,
    Interval,
    Values,
    excludes_zero,
    mean_interval,
)
from pipegap.analysis.statistics.tax import PAPER, reported_taxes, token_tax
from pipegap.analysis.statistics.text import tax_text
from pipegap.analysis.table import names
from pipegap.trainer.base.atomic import write_atomically

FOLDER = Path(__file__).parent
SHORT, LONG = 5_000, 15_000
"""Numbers of updates."""
FIVE = dict.fromkeys(("adamw", "muon", "soap"), 5)
SEEDS: Mapping[tuple[int, int], Mapping[str, int]] = {
    (108_928, SHORT): FIVE,
    (108_928, LONG): FIVE,
    (320_256, SHORT): FIVE,
    (320_256, LONG): FIVE,
    (771_328, SHORT): FIVE,
    (2_017_536, SHORT): {"adamw": 3, "muon": 3},
}
"""Parameters and updates of each rung, and how many seeds of each optimizer run.sh asks for:
nothing is judged before all of them have run."""
STEADY = 0.1
"""A trend that lies within ± this much stays: of a gap its exponent, of a share its change for ten
times the parameters."""
PAPER_SIZE, MARIN_SIZE = 361_821_120, 130_000_000
BYTES_PER_TOKEN = 4.5
"""Of English in the paper's vocabulary of 49,152 and in marin's, roughly: their gaps are in nats
per token, ours per byte. Assumed, not measured."""
EXPONENTS = np.linspace(-3, 3, 1201)
"""Those that are tried: an interval that would end beyond them has no end."""
ARMS = ("sync", "delay", "delay_ef")
SHARE = "share removed"
WAITS, NOT_ENOUGH = "waits for all rungs", "not enough data"


def slope_weights(places: Values) -> Values:
    """The weights by which values at these places make the slope of their least-squares line."""
    off = places - places.mean()
    return off / (off**2).sum()


def welch(means: Values, variances: Values, numbers: Values) -> tuple[Values, Values]:
    """The sum over the last axis in standard errors, and its degrees of freedom by Welch and
    Satterthwaite; `variances`: of a seed, `numbers`: of seeds, which are independent."""
    parts = variances / numbers
    whole = parts.sum(axis=-1)
    freedom = whole**2 / (parts**2 / (numbers - 1)).sum(axis=-1)
    return means.sum(axis=-1) / np.sqrt(whole), freedom


class Trend(NamedTuple):
    """How a number goes with the size of the model: a slope with the ends of its interval, infinite
    where it has none, and what is left at the paper's size if it went on, with its ends."""

    slope: float
    ends: Interval
    goes_on: tuple[float, float, float]

    @property
    def word(self) -> str:
        """What the rule says."""
        low, high = self.ends
        if low > 0:
            return "**grows**"
        if high < 0:
            return "**falls**"
        return "**stays**" if low > -STEADY and high < STEADY else NOT_ENOUGH


def gap_trend(gaps: Sequence[Values], sizes: Values) -> Trend:
    """The exponent b of gaps c N^b, one array of seeds per rung.

    Of each b the gaps are divided by N^b, and the slope of their means over ln N is tested against
    0: the interval has the exponents that are not rejected (as Fieller's has ratios), so a gap may
    be 0 at a rung. The slope is that of the least |t|.
    """
    off = np.log(sizes) - np.log(sizes).mean()
    factors = np.exp(-EXPONENTS[:, None] * off)  # (exponents, rungs)
    weights = slope_weights(off) * factors
    means, variances, numbers = _moments(gaps)
    t, freedom = welch(weights * means, weights**2 * variances, numbers)
    ends = _hull(np.abs(t) < stats.t.ppf((1 + CONFIDENCE) / 2, freedom), t)
    best = int(np.abs(t).argmin())
    centres = (factors * means).mean(axis=-1)
    at_size = centres * np.exp(EXPONENTS * (np.log(PAPER_SIZE) - np.log(sizes).mean()))
    low, high = np.interp(ends, EXPONENTS, at_size, left=0.0, right=np.inf)
    return Trend(float(EXPONENTS[best]), ends, (float(at_size[best]), float(low), float(high)))


def _hull(is_possible: NDArray[np.bool_], t: Values) -> Interval:
    """The exponents that are not rejected; infinite where the last of them lies at an edge."""
    if not is_possible.any():  # gaps of both signs: the side on which an exponent would be
        return (np.inf, np.inf) if t.mean() > 0 else (-np.inf, -np.inf)
    inside = EXPONENTS[is_possible]
    low = -np.inf if is_possible[0] else inside[0]
    return float(low), float(np.inf if is_possible[-1] else inside[-1])


def share_trend(gaps: Sequence[Values], corrected: Sequence[Values], sizes: Values) -> Trend:
    """The change for ten times the parameters of the share of a gap that a correction removes, by
    the delta method: all gaps must be seen."""
    places = np.log10(sizes)
    shares_left = np.array(
        [of.mean() / gap.mean() for gap, of in zip(gaps, corrected, strict=True)]
    )
    errors = [
        (share_left * gap - of) / gap.mean()
        for share_left, gap, of in zip(shares_left, gaps, corrected, strict=True)
    ]
    _, variances, numbers = _moments(errors)

    def ends(weights: Values) -> tuple[float, float, float]:
        value = float((weights * (1 - shares_left)).sum())
        t, freedom = welch(weights * (1 - shares_left), weights**2 * variances, numbers)
        half = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * abs(value / t)
        return value, float(value - half), float(value + half)

    slope = slope_weights(places)
    at_size = 1 / len(places) + slope * (np.log10(PAPER_SIZE) - places.mean())
    value, low, high = ends(slope)
    return Trend(value, (low, high), ends(at_size))


def _moments(of_rungs: Sequence[Values]) -> tuple[Values, Values, Values]:
    """Mean and variance over seeds of each rung, and the number of seeds."""
    moments = [(of.mean(), of.var(ddof=1), len(of)) for of in of_rungs]
    means, variances, numbers = np.array(moments).T
    return means, variances, numbers


def is_seen(gaps: Values) -> bool:
    """Whether the 95 % interval of the mean lies above 0: a share of what may be nothing says
    nothing."""
    return mean_interval(gaps)[0] > 0


Rungs = Mapping[tuple[int, int], Mapping[str, pd.DataFrame]]
"""By parameters and updates, and by optimizer: losses, a row per seed, a column per arm."""


def published(folder: Path = FOLDER) -> pd.DataFrame:
    """The trials of all tables, one per machine, with the name of theirs in `table`."""
    tables = [load(path).assign(table=path.name) for path in sorted(folder.glob("trials_*.csv"))]
    return pd.concat(tables, ignore_index=True)


def rungs(trials: pd.DataFrame) -> Rungs:
    """The losses of each rung that SEEDS names, from the smallest on, at each seed of which one
    table has all arms; the first of several such tables counts."""
    tables: dict[tuple[int, int], dict[str, pd.DataFrame]] = {}
    for size, updates in SEEDS:
        of_rung = trials[
            (trials["num_parameters"] == size) & (trials["num_updates_asked"] == updates)
        ]
        for optimizer, rows in of_rung.groupby("optimizer"):
            tables.setdefault((size, updates), {})[str(optimizer)] = _of_tables(rows)
    return tables


def _of_tables(trials: pd.DataFrame) -> pd.DataFrame:
    whole = [
        by_arm.reindex(columns=ARMS).dropna()
        for _, of_table in trials.groupby("table")
        for by_arm in losses(of_table).values()
    ]
    seeds = pd.concat(whole) if whole else pd.DataFrame(columns=ARMS)
    return seeds[~seeds.index.duplicated()].sort_index()


def is_whole(of_all: Rungs, key: tuple[int, int], optimizer: str) -> bool:
    """Whether all seeds of an optimizer at a rung have all arms."""
    return len(of_all.get(key, {}).get(optimizer, ())) >= SEEDS[key][optimizer]


def gaps_of(of: pd.DataFrame, arm: str) -> Values:
    """An arm's gap at each seed, from the losses of one optimizer by seed and arm."""
    return (of[arm] - of["sync"]).to_numpy()


@cache
def reported() -> pd.DataFrame:
    """Gaps of others, of one seed each, in nats per token: `who`, `optimizer`, `arm`, `gap`."""
    taxes = reported_taxes()
    paper = taxes[(taxes["who"] == PAPER) & taxes["optimizer"].isin(FIVE)]
    paper = paper.assign(gap=paper["loss"] - paper["loss_sync"], size=PAPER_SIZE)
    marin = pd.read_csv(FOLDER.parent / "others" / "reported.csv").query(
        "arm == 'constant_delay(2)'"
    )
    marin = marin.assign(who="marin, 130M class, delay of 2", arm="delay", size=MARIN_SIZE)
    columns = ["who", "optimizer", "arm", "gap", "size", "loss_sync"]
    return pd.concat([paper, marin]).reindex(columns=columns).reset_index(drop=True)


def _text(ends: Interval, form: str = "+.4f") -> str:
    low, high = ends
    return f"{(low + high) / 2:{form}} [{low:{form}}, {high:{form}}]"


def _removed(of: pd.DataFrame) -> float:
    return float(1 - gaps_of(of, "delay_ef").mean() / gaps_of(of, "delay").mean())


def _gap(of: pd.DataFrame, arm: str, diverged: int) -> str:
    gaps = gaps_of(of, arm)
    text = f"{gaps.mean():+.4f}"
    if len(gaps) > 1:
        text = _text(mean_interval(gaps))
    return f"{text}, {diverged} diverged" if diverged else text


def gap_rows(trials: pd.DataFrame, of_all: Rungs) -> Iterator[list[str]]:
    """The gaps of each rung, then those that others reported."""
    first = ["parameters", "updates", "tokens", "optimizer", "learning rate", "sync"]
    yield [*first, "delay", "delay + EF", "removed", "n"]
    for (size, updates), by_optimizer in of_all.items():
        of_rung = trials.query("num_parameters == @size and num_updates_asked == @updates")
        for optimizer, of in by_optimizer.items():
            if of.empty:
                continue
            rows = of_rung[(of_rung["optimizer"] == optimizer) & of_rung["seed"].isin(of.index)]
            delayed_rows = of_rung[(of_rung["optimizer"] == optimizer) & (of_rung["arm"] != "sync")]
            diverged = delayed_rows[delayed_rows["status"] == "diverged"]["arm"].value_counts()
            [batch] = {*rows["batch_size"] * rows["seq_len"]}
            [rate] = {*rows["optimizer.lr"]}
            gaps = [_gap(of, arm, diverged.get(arm, 0)) for arm in ("delay", "delay_ef")]
            removed = f"{_removed(of):.0%}" if is_seen(gaps_of(of, "delay")) else ""
            yield [
                *(f"{size:,}", f"{updates:,}", f"{batch:,.0f}", names.optimizer(optimizer)),
                *(f"{rate:g}", f"{of['sync'].mean():.4f}", *gaps, removed),
                f"{len(of)} of {SEEDS[size, updates].get(optimizer, len(of))}",
            ]
    for _, of in reported().groupby(["who", "optimizer"], sort=False):
        who, optimizer = of[["who", "optimizer"]].iloc[0]
        by_arm = of.set_index("arm")
        gaps = [
            f"{by_arm['gap'][a]:+.3f}" if a in by_arm.index else "" for a in ("delay", "delay_ef")
        ]
        removed = f"{1 - by_arm['gap']['delay_ef'] / by_arm['gap']['delay']:.0%}" if gaps[1] else ""
        sync = by_arm["loss_sync"].iloc[0]
        sync_text = "" if np.isnan(sync) else f"{sync:.3f}"
        yield [
            str(who),
            "",
            "",
            names.optimizer(str(optimizer)),
            "",
            sync_text,
            *gaps,
            removed,
            "one seed",
        ]


def trend(of_all: Rungs, optimizer: str, quantity: str) -> tuple[Trend | None, str, int]:
    """The trend over the rungs that have all seeds, what the rule says, and how many these are."""
    ladder = [key for key in SEEDS if key[1] == SHORT and optimizer in SEEDS[key]]
    keys = [key for key in ladder if is_whole(of_all, key, optimizer)]
    if len(keys) < 2:
        return None, WAITS, len(keys)
    sizes = np.array([float(size) for size, _ in keys])
    delay, corrected = (
        [gaps_of(of_all[key][optimizer], arm) for key in keys] for arm in ("delay", "delay_ef")
    )
    if quantity == SHARE and not all(map(is_seen, delay)):
        return None, f"{NOT_ENOUGH}: a gap may be 0", len(keys)
    if quantity == SHARE:
        slope = share_trend(delay, corrected, sizes)
    else:
        slope = gap_trend(delay if quantity == "gap" else corrected, sizes)
    return slope, slope.word if keys == ladder else WAITS, len(keys)


def trend_rows(of_all: Rungs) -> Iterator[list[str]]:
    """The slope of each quantity, the verdict, and the paper's row if the trend went on."""
    yield ["optimizer", "of", "slope [95 %]", "verdict", "rungs", "at 360M, if it went on"]
    for optimizer in FIVE:
        for quantity in ("gap", "gap with EF", SHARE):
            size_trend, verdict_text, num_rungs = trend(of_all, optimizer, quantity)
            slope, goes_on = "", ""
            if size_trend is not None:
                slope = _interval(size_trend.slope, *size_trend.ends, "+.2f")
                # `z`: what rounds to 0 has no minus.
                form, unit = (".0%", 1.0) if quantity == SHARE else ("+z.3f", BYTES_PER_TOKEN)
                value, low, high = (unit * part for part in size_trend.goes_on)
                goes_on = _interval(value, low, high, form)
            yield [
                names.optimizer(optimizer),
                quantity,
                slope,
                verdict_text,
                str(num_rungs),
                goes_on,
            ]


def _interval(value: float, low: float, high: float, form: str) -> str:
    """Return `−0.69 [−∞, +0.15]`."""
    text = f"{value:{form}} [{low:{form}}, {high:{form}}]"
    return names.minus(text.replace("-inf", "−∞").replace("+inf", "+∞"))


def length_rows(of_all: Rungs) -> Iterator[list[str]]:
    """What three times the updates change at a size, and the token tax there."""
    heads = ["parameters", "optimizer", "arm", "gap at 15,000 minus at 5,000", "verdict"]
    yield [*heads, "token tax at 5,000"]
    for size in sorted({size for size, updates in SEEDS if updates == LONG}):
        for optimizer in SEEDS[size, LONG]:
            keys = [(size, updates) for updates in (SHORT, LONG)]
            if not all(is_whole(of_all, key, optimizer) for key in keys):
                yield [f"{size:,}", names.optimizer(optimizer), "", "", WAITS, ""]
                continue
            short, long = (of_all[key][optimizer] for key in keys)
            for arm in ("delay", "delay_ef"):
                change = (long[arm] - long["sync"]) - (short[arm] - short["sync"])
                sync, delayed = (
                    {
                        int(seed): {SHORT: short[a][seed], LONG: long[a][seed]}
                        for seed in change.dropna().index
                    }
                    for a in ("sync", arm)
                )
                tax = token_tax(sync, delayed, SHORT)
                tax_words = tax_text(tax._asdict()) or tax.tax_why
                ends = mean_interval(change.dropna().to_numpy())
                word = NOT_ENOUGH
                if excludes_zero(ends):
                    word = "**grows**" if ends[0] > 0 else "**falls**"
                row = [f"{size:,}", names.optimizer(optimizer), names.REPORTED_ARMS[arm]]
                yield [*row, _text(ends), word, tax_words]


def standard_errors(of_all: Rungs) -> Mapping[str, float]:
    """The largest standard error of a mean gap, by optimizer."""
    errors = dict[str, float]()
    for by_optimizer in of_all.values():
        for optimizer, of in by_optimizer.items():
            for arm in ("delay", "delay_ef"):
                if len(of) > 1:
                    error = float((of[arm] - of["sync"]).std() / np.sqrt(len(of)))
                    errors[optimizer] = max(error, errors.get(optimizer, 0.0))
    return errors


def result(trials: pd.DataFrame) -> str:
    """The tables between the marks of the page."""
    of_all = rungs(trials)
    tables = ", ".join(f"[{name}]({name})" for name in sorted({*trials["table"]}))
    errors = ", ".join(
        f"{names.optimizer(optimizer)} {error:.4f}"
        for optimizer, error in standard_errors(of_all).items()
    )
    parts = [
        f"{len(trials)} trials, those that tuned among them: {tables}. Gaps are "
        "differences of final losses, paired by seed, in nats\nper byte, with 95 % intervals; "
        "those of others are in nats per token. The largest standard error of a gap:\n"
        f"{errors or WAITS}.",
        markdown([*gap_rows(trials, of_all)]),
        "Over the rungs of 5,000 updates: the exponent of the power of the parameters that a gap "
        "is, and the change of a share for\nten times the parameters. At 360M gaps are in nats per "
        f"token of {BYTES_PER_TOKEN} bytes.",
        markdown([*trend_rows(of_all)]),
        "The length, at the two smallest sizes:",
        markdown([*length_rows(of_all)]),
        f"![Gaps by the size of the model, beside those of the paper and of marin]({PICTURE})",
    ]
    return names.minus("\n\n".join(parts))


BESIDE = {"adamw": 0.93, "soap": 1.07}
"""Where optimizers stand beside each other in the figure, in parameters."""


def figure_data(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per rung, optimizer and arm, and per gap that others reported, in nats per byte."""
    rows = []
    for (size, updates), by_optimizer in rungs(trials).items():
        for optimizer, of in by_optimizer.items():
            for arm in ("delay", "delay_ef") if len(of) else ():
                gaps = gaps_of(of, arm)
                low, high = mean_interval(gaps)
                row = {"arm": arm, "optimizer": optimizer, "who": f"{updates:,} updates"}
                rows.append({**row, "size": size, "mean": gaps.mean(), "low": low, "high": high})
    reported_rows = reported().assign(
        mean=reported()["gap"] / BYTES_PER_TOKEN, low=np.nan, high=np.nan
    )
    table = pd.concat([pd.DataFrame(rows), reported_rows], ignore_index=True)
    table["series"] = table["optimizer"].map(names.optimizer)
    table["is_ours"] = ~table["who"].isin(reported()["who"])
    table["place"] = table["size"] * [BESIDE.get(name, 1.0) for name in table["optimizer"]]
    return table


def charts(data: pd.DataFrame) -> list[Chart]:
    """A panel per arm: gaps over parameters, a colour per optimizer, a shape per source."""
    styles = optimizer_styles(data)
    look = legend({name: name for name in styles}, styles)
    shape = alt.Shape(
        "who:N",
        scale=alt.Scale(
            domain=[*dict.fromkeys(data["who"])],
            range=["circle", "square", "diamond", "cross"][: data["who"].nunique()],
        ),
        legend=alt.Legend(columns=2),
    )
    axis = alt.Axis(values=[10.0**power for power in range(5, 9)], labelExpr=NUMBER)
    scale = alt.Scale(type="log", domain=[8e4, 6e8])
    x = alt.X("place:Q", title="parameters", scale=scale, axis=axis)
    panels: list[Chart] = []
    for arm, rows in data.groupby("arm", sort=False):
        ends = pd.concat([data[name] for name in ("mean", "low", "high")])
        y = gap_axis(alt.Y("mean:Q"), ends, symlog=True)
        y["title"] = ["gap to sync (nats per byte)", *y["title"][1:]]  # several lines
        columns = ["series", "who", "is_ours", "place", "mean", "low", "high"]
        base = alt.Chart(rounded(rows, columns)).encode(x=x, color=look.color)
        bars = base.transform_filter("isValid(datum.low)").mark_rule()
        bars = bars.encode(
            y=alt.Y("low:Q", scale=y["scale"], axis=y["axis"], title=y["title"]), y2="high:Q"
        )
        line = base.transform_filter(f"datum.who == '{SHORT:,} updates'").mark_line(strokeWidth=1)
        dots = base.transform_filter("datum.is_ours").mark_point(filled=True, size=60, opacity=1)
        hollow = base.transform_filter("!datum.is_ours").mark_point(size=70, opacity=1)
        layers = [bars, line.encode(y=y), *(m.encode(y=y, shape=shape) for m in (dots, hollow))]
        zero = alt.Chart(pd.DataFrame({"mean": [0.0]})).mark_rule(color="#888888").encode(y=y)
        panels.append(alt.layer(zero, *layers, title=titled(names.REPORTED_ARMS[str(arm)])))
    return panels


GROWTH = Figure(
    name="growth",
    title="What a delay costs, by the size of the model",
    data=lambda trials, _: figure_data(trials),
    charts=charts,
    caption=(
        "filled: means over seeds with 95 % intervals; hollow: one seed, of others, in nats per "
        f"token, divided by {BYTES_PER_TOKEN} bytes",
    ),
    columns=2,
)


def write(folder: Path = FOLDER) -> None:
    """Writes the picture, and the part of the page between its marks."""
    warnings.simplefilter("ignore", UserWarning)
    trials, page = published(folder), folder / "README.md"
    write_atomically(page, filled(page.read_text(), {"result": result(trials)}).encode())
    drawn = whole(plot(GROWTH, figure_data(trials)))
    write_atomically(folder / PICTURE, with_font(picture(drawn)).encode())


if __name__ == "__main__":
    write()
