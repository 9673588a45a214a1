"""Makes the page and the picture of this study from its table, by the rule in sweep.yaml.

python -m findings.predictors
"""

from collections import Counter
from itertools import permutations
from pathlib import Path

import pandas as pd

from findings.front import markdown
from findings.study import PICTURE, TABLE, difference, losses, write
from pipegap.analysis import gaps
from pipegap.analysis.statistics.pairs import mean_interval
from pipegap.analysis.statistics.text import TEXTS
from pipegap.analysis.table import names

PER_STAGE, UNIFORM = "pipedream", "constant_delay(5)"
REPORTED = {
    "": 0.086,
    "_weight_prediction": 0.067,
    "_momentum_prediction": 0.097,
    "_trusted_prediction": 0.076,
    "_cautious_prediction": 0.098,
}
"""Of a delay per stage with each correction: marin's gap, in nats per token."""
REPORTED_UNIFORM = 0.282
TIED = 0.005
"""marin's gaps that differ by less have no order."""
ORDER = [
    (worse, better)
    for worse, better in permutations(REPORTED, 2)
    if REPORTED[worse] - REPORTED[better] > TIED
]
STATEMENTS = [
    *(
        pair
        for delay in (PER_STAGE, UNIFORM)
        for pair in [(delay, "sync"), *((delay + worse, delay + better) for worse, better in ORDER)]
    ),
    (UNIFORM, PER_STAGE),
]
"""The arm that has the larger loss by marin's numbers, and the other one."""
JOINT = 1 - 0.05 / len(STATEMENTS)  # Bonferroni: together they err in one of twenty
NUM_SEEDS = 8
"""Those that sweep.yaml names: nothing is judged before all have run."""


def verdict(of: pd.DataFrame, worse: str, better: str) -> str:
    """What the rule says of a statement, from the losses by seed and arm."""
    low, high = mean_interval((of[worse] - of[better]).to_numpy(), JOINT)
    if low > 0:
        return "**agrees**"
    return "**disagrees**" if high < 0 else "not enough data"


def reported(worse: str, better: str) -> str:
    """marin's difference of two arms, where it has both."""
    gap_of_arm = {PER_STAGE + suffix: gap for suffix, gap in REPORTED.items()}
    gap_of_arm |= {UNIFORM: REPORTED_UNIFORM, "sync": 0.0}
    if not {worse, better} <= {*gap_of_arm}:
        return ""
    return f"{gap_of_arm[worse] - gap_of_arm[better]:+.3f}"


def result(trials: pd.DataFrame) -> str:
    """The tables between the marks of the page."""
    by_arm, of = names.arms(trials), losses(trials)["muon"]
    removed = TEXTS["gap removed [95 %]"]
    shares = {str(row["arm"]): removed(row) for row in gaps(trials).to_dict("records")}
    heads = ["delay and prediction", "marin: gap", "removed", "here: gap", "removed"]
    rows = [heads]
    for delay in (PER_STAGE, UNIFORM):
        for suffix, gap in REPORTED.items():
            arm, share = delay + suffix, f"{1 - gap / REPORTED['']:.0%}"
            # marin corrects a delay per stage alone.
            share = share if suffix and delay == PER_STAGE else ""
            ours = difference(of, arm, "sync"), shares[arm]
            rows.append([by_arm[arm], reported(arm, "sync"), share, *ours])
    judged = [["by marin's numbers", "costs more than", "marin", "here", "verdict"]]
    for worse, better in STATEMENTS:
        word = verdict(of, worse, better) if len(of) >= NUM_SEEDS else "waits for all seeds"
        numbers = reported(worse, better), difference(of, worse, better, JOINT)
        judged.append([by_arm[worse], by_arm[better], *numbers, word])
    verdicts = Counter(row[-1].strip("*") for row in judged[1:])
    parts = [
        f"{len(trials)} trials: [{TABLE}]({TABLE}). Differences of final losses, paired "
        f"by seed, with 95 % intervals; {len(of)} of\n{NUM_SEEDS} seeds have all arms.",
        markdown(rows),
        "Each statement by the rule's wider interval:",
        markdown(judged),
        f"Of {len(STATEMENTS)} statements: {verdicts['agrees']} agree, {verdicts['disagrees']} "
        f"disagree, {verdicts['not enough data']} without enough data.",
        f"![Final losses]({PICTURE})",
    ]
    return names.minus("\n\n".join(parts))


if __name__ == "__main__":
    write(Path(__file__).parent, result)
