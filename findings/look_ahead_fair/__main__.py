"""Makes the page and the picture of this study from its table, by the rule in sweep.yaml.

python -m findings.look_ahead_fair
"""

import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from findings.front import filled
from pipegap.analysis import gaps, load
from pipegap.analysis.figures import BY_NAME
from pipegap.analysis.figures.figure import plot, whole
from pipegap.analysis.figures.files import picture, with_font
from pipegap.analysis.statistics.intervals import mean_interval, moments
from pipegap.analysis.table import names
from pipegap.trainer.base.atomic import write_atomically

HERE = Path(__file__).parent
PAGE, TABLE, PICTURE = (HERE / name for name in ("README.md", "trials_tiny.csv", "losses.svg"))
SYNC = ("sync", "sync_ema_nesterov(look_ahead=0.3)")
DELAYED = (
    *("delay", "delay_ef", "delay_ef(2)", "delay_ema_nesterov(look_ahead=0.3)"),
    "delay_ema_nesterov(look_ahead=0.3,1)",
)
NUM_SEEDS = {"adamw": 24, "muon": 16, "soap": 16}
"""Those that sweep.yaml names: nothing is judged before all have run."""
NUM_COMPARED = len(NUM_SEEDS) * len(DELAYED) * len(SYNC)
JOINT = 1 - 0.05 / NUM_COMPARED
NEAR = 0.2
"""Share of the plain delay's gap that counts as nothing."""


def losses(trials: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Final losses of each optimizer, a row per seed at which all its arms ended, a column per
    arm."""
    done = trials[trials["final_val_loss"].notna()]
    return {
        str(optimizer): of.pivot_table("final_val_loss", "seed", "arm").dropna()
        for optimizer, of in done.groupby("optimizer")
    }


def verdict(of: pd.DataFrame, arm: str) -> str:
    """What the rule says of a delayed arm, from the losses of one optimizer."""
    ends = [mean_interval((of[arm] - of[sync]).to_numpy(), JOINT) for sync in SYNC]
    near = NEAR * (of["delay"] - of["sync"]).mean()
    if all(high < near for _, high in ends):
        return "**reaches it**"
    return "**stays behind**" if any(low > 0 for low, _ in ends) else "not enough data"


def _difference(of: pd.DataFrame, arm: str, other: str) -> str:
    """The mean paired difference with its 95 % interval."""
    values = (of[arm] - of[other]).to_numpy()
    low, high = mean_interval(values)
    return f"{values.mean():+.4f} [{low:+.4f}, {high:+.4f}]"


def result(trials: pd.DataFrame) -> str:
    """The tables between the marks of the page."""
    by_arm, of_all = names.arms(trials), losses(trials)
    error = max(
        moments((of[arm] - of[sync]).to_numpy()).std / np.sqrt(len(of))
        for of in of_all.values()
        for arm, sync in product(DELAYED, SYNC)
    )
    heads = ["optimizer", "arm", "minus sync", f"minus {by_arm[SYNC[1]]}", "the best sync", "n"]
    rows = [heads, ["---"] * len(heads)]
    for optimizer, of in of_all.items():
        looks = _difference(of, SYNC[1], SYNC[0])
        rows.append([names.optimizer(optimizer), by_arm[SYNC[1]], looks, "", "", str(len(of))])
        for arm in DELAYED:
            differences = [_difference(of, arm, sync) for sync in SYNC]
            said = verdict(of, arm) if len(of) >= NUM_SEEDS[optimizer] else "waits for all seeds"
            rows.append(["", by_arm[arm], *differences, said, str(len(of))])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    before = (
        f"{len(trials)} trials: [{TABLE.name}]({TABLE.name}). Differences of final losses, paired "
        f"by seed, with 95 % intervals; the largest\nstandard error is {error:.4f}. The verdicts "
        "are by the rule's wider intervals, after all seeds.\n\n"
    )
    return names.minus(before + table + f"\n\n![Final losses]({PICTURE.name})")


def main() -> None:
    """Writes the page and the picture."""
    warnings.simplefilter("ignore", UserWarning)
    trials, figure = load(TABLE), BY_NAME["final_losses"]
    page = filled(PAGE.read_text(), {"result": result(trials)})
    write_atomically(PAGE, page.encode())
    drawn = whole(plot(figure, figure.data(trials, gaps(trials))))
    write_atomically(PICTURE, with_font(picture(drawn)).encode())


if __name__ == "__main__":
    main()
