"""The table of how near late updates are to fresh ones, in docs/findings.md."""

from __future__ import annotations

from itertools import combinations

import pandas as pd

from analysis.statistics.intervals import mean_interval
from analysis.table.names import arms, minus
from analysis.table.names import optimizer as name
from bench.documents.cells import gap, table
from bench.documents.published import DOCS, of_sweep

MEASURES = ("cosine", "error")


def lateness(scale: str) -> str:
    """How near each arm's late updates are to the fresh ones, beside its gap, and differences."""
    found = pd.read_csv(DOCS / f"lateness_{scale}.csv")
    trials, gaps = of_sweep("staleness", scale)
    named, gap_of = arms(trials), gaps.set_index(["optimizer", "arm"]).to_dict("index")
    rows = []
    for (arm, optimizer), of in found.groupby(["arm", "optimizer"]):
        means = [_mean(of[measure]) for measure in MEASURES]
        said = [name(optimizer), named[str(arm)]]
        rows.append([*said, *means, gap(gap_of[optimizer, arm]), str(len(of))])
    for arm, of in found.groupby("arm"):
        of_each = of.pivot_table(index="seed", columns="optimizer", values=[*MEASURES])
        for one, other in combinations(sorted({*of["optimizer"]}), 2):
            apart = [of_each[measure, one] - of_each[measure, other] for measure in MEASURES]
            said = [f"{name(one)} minus {name(other)}", named[str(arm)]]
            rows.append([*said, *map(_mean, apart), "", str(apart[0].count())])
    heads = ["optimizer", "arm", "mean cosine", "mean relative error", "gap", "n"]
    return table(heads, rows)


def _mean(values: pd.Series) -> str:
    """To four digits, with its interval."""
    low, high = mean_interval(values.dropna().to_numpy())
    return minus(f"{values.mean():.4f} [{low:.4f}, {high:.4f}]")
