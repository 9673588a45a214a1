"""The table of all arms of a sweep, in docs/findings.md."""

from __future__ import annotations

from analysis.table.names import arms, settings
from analysis.table.names import optimizer as name
from bench.documents.cells import gap, loss, removed, table
from bench.documents.published import of_sweep


def every_arm(sweep: str, scale: str) -> str:
    """One row per point and arm that has a pair, in the order of the sweep's points, each point's
    from the smallest gap to the largest."""
    trials, found = of_sweep(sweep, scale)
    named, at = arms(trials), settings(trials)
    shown = found[found["pairs"] > 0].assign(at=found["point"].map(at).fillna(""))
    rows = shown.sort_values(["optimizer", "at", "gap"], kind="stable").to_dict("records")
    heads = ["optimizer", "at", "arm", "sync loss", "gap", "gap removed", "n", "diverged"]
    cells = [
        [
            *(name(row["optimizer"]), row["at"], named[row["arm"]]),
            *(loss(row), gap(row), removed(row), str(row["n"]), str(row["diverged"] or "")),
        ]
        for row in rows
    ]
    kept = [place for place, _ in enumerate(heads) if any(row[place] for row in cells)]
    return table([heads[i] for i in kept], [[row[i] for i in kept] for row in cells])
