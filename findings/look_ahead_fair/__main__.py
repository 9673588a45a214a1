"""Makes the page and the picture of this study from its table, by the rule in sweep.yaml.

python -m findings.look_ahead_fair
"""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from findings.front import markdown
from findings.study import PICTURE, TABLE, difference, losses, write
from pipegap.analysis.statistics.pairs import mean_interval, moments
from pipegap.analysis.table import names

SYNC = ("sync", "sync_ema_nesterov(look_ahead=0.3)")
DELAYED = (
    *("delay", "delay_ef", "delay_ef(2)", "delay_ema_nesterov(look_ahead=0.3)"),
    "delay_ema_nesterov(look_ahead=0.3,1)",
)
NUM_SEEDS = {"adamw": 24, "muon": 16, "soap": 16}
"""Those that sweep.yaml names: nothing is judged before all have run."""
# Bonferroni: all comparisons together err in one of twenty.
JOINT = 1 - 0.05 / (len(NUM_SEEDS) * len(DELAYED) * len(SYNC))
NEAR = 0.2
"""Share of the plain delay's gap that counts as nothing."""


def verdict(of: pd.DataFrame, arm: str) -> str:
    """What the rule says of a delayed arm, from the losses of one optimizer."""
    ends = [mean_interval((of[arm] - of[sync]).to_numpy(), JOINT) for sync in SYNC]
    margin = NEAR * (of["delay"] - of["sync"]).mean()
    if all(high < margin for _, high in ends):
        return "**reaches it**"
    return "**stays behind**" if any(low > 0 for low, _ in ends) else "not enough data"


def result(trials: pd.DataFrame) -> str:
    """The tables between the marks of the page."""
    by_arm, of_all = names.arms(trials), losses(trials)
    error = max(
        moments((of[arm] - of[sync]).to_numpy()).std / np.sqrt(len(of))
        for of in of_all.values()
        for arm, sync in product(DELAYED, SYNC)
    )
    heads = ["optimizer", "arm", "minus sync", f"minus {by_arm[SYNC[1]]}", "the best sync", "n"]
    rows = [heads]
    for optimizer, of in of_all.items():
        looks = difference(of, SYNC[1], SYNC[0])
        rows.append([names.optimizer(optimizer), by_arm[SYNC[1]], looks, "", "", str(len(of))])
        for arm in DELAYED:
            differences = [difference(of, arm, sync) for sync in SYNC]
            has_all = len(of) >= NUM_SEEDS[optimizer]
            word = verdict(of, arm) if has_all else "waits for all seeds"
            rows.append(["", by_arm[arm], *differences, word, str(len(of))])
    introduction = (
        f"{len(trials)} trials: [{TABLE}]({TABLE}). Differences of final losses, paired "
        f"by seed, with 95 % intervals; the largest\nstandard error is {error:.4f}. The verdicts "
        "are by the rule's wider intervals, after all seeds.\n\n"
    )
    return names.minus(introduction + markdown(rows) + f"\n\n![Final losses]({PICTURE})")


if __name__ == "__main__":
    write(Path(__file__).parent, result)
