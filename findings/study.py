"""What the pages of studies share: losses paired by seed, a table, and the page with its picture
made anew from the study's table."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from findings.front import filled
from pipegap.analysis import gaps, load
from pipegap.analysis.figures import BY_NAME
from pipegap.analysis.figures.figure import picture, plot, whole, with_font
from pipegap.analysis.statistics.pairs import CONFIDENCE, mean_interval
from pipegap.trainer.base.atomic import write_atomically

TABLE, PICTURE = "trials_tiny.csv", "losses.svg"
"""Files of a study's folder."""


def losses(trials: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Final losses of each optimizer, a row per seed at which all its arms ended, a column per
    arm."""
    done = trials[trials["final_val_loss"].notna()]
    return {
        str(optimizer): of.pivot_table("final_val_loss", "seed", "arm").dropna()
        for optimizer, of in done.groupby("optimizer")
    }


def difference(of: pd.DataFrame, arm: str, reference: str, level: float = CONFIDENCE) -> str:
    """The mean difference of two arms, paired by seed, with its interval, from the losses of one
    optimizer."""
    values = (of[arm] - of[reference]).to_numpy()
    low, high = mean_interval(values, level)
    return f"{values.mean():+.4f} [{low:+.4f}, {high:+.4f}]"


def write(folder: Path, result: Callable[[pd.DataFrame], str]) -> None:
    """Writes the picture, and between the marks of the page what `result` says of the trials."""
    warnings.simplefilter("ignore", UserWarning)  # a study's trials may be of several commits
    page, figure = folder / "README.md", BY_NAME["final_losses"]
    trials = load(folder / TABLE)
    write_atomically(page, filled(page.read_text(), {"result": result(trials)}).encode())
    drawn = whole(plot(figure, figure.data(trials, gaps(trials))))
    write_atomically(folder / PICTURE, with_font(picture(drawn)).encode())
