"""The table of the sweep `remedies`, in docs/findings.md."""

from __future__ import annotations

from analysis.report.remedies import remedies
from analysis.statistics.text import tax_text
from analysis.table.names import arms
from analysis.table.names import optimizer as name
from bench.documents.cells import gap, mean, removed, table
from bench.documents.published import Published, view

ALONE = ["delay", "wpipe", "constant_delay(3)"]
"""The arms that no remedy has touched, one for each pipeline."""


def every_remedy(of: Published, scale: str, updates: int) -> str:
    """One row per optimizer and arm at this length, by the pipeline and then by the gap.

    Taxes are from all lengths. What a remedy saves is the gap of its pipeline alone minus its own,
    paired by seed.
    """
    trials, found = view(of)
    named = arms(trials)
    at_length = trials[trials["num_updates"] == updates]
    losses = at_length.pivot_table(
        index="seed", columns=["optimizer", "arm"], values="final_val_loss"
    )
    shown = remedies(trials, found, scale).rename(columns={"gap_low": "low", "gap_high": "high"})
    shown = shown.merge(found[["optimizer", "point", "arm", "setting"]])
    shown = shown[shown["point"].isin(at_length["point"])]
    shown["pipeline"] = shown["arm"].map(_pipeline)
    rows = []
    for row in shown.sort_values(["optimizer", "pipeline", "gap"]).to_dict("records"):
        own, alone = losses[row["optimizer"]], ALONE[row["pipeline"]]
        saves = "" if row["arm"] == alone else mean(own[alone] - own[row["arm"]])
        rows.append(
            [
                *(name(row["optimizer"]), named[row["arm"]], gap(row), saves, removed(row)),
                *(tax_text(row), f"{row['memory ratio']:.2f}", str(row["diverged"] or "")),
            ]
        )
    heads = ["optimizer", "arm", "gap", "less than without, paired", "gap removed"]
    return table([*heads, "token tax", "memory / sync's", "diverged"], rows)


def _pipeline(arm: str) -> int:
    """The place of the arm that this one adds a remedy to."""
    return next(i for i, alone in enumerate(ALONE) if arm.startswith(alone))


def rotated(of: Published, updates: int) -> str:
    """The gaps of basis rotation beside AdamW's, by delay, paired by seed."""
    trials = view(of).trials
    losses = trials[trials["num_updates"] == updates].pivot_table(
        index="seed", columns=["optimizer", "arm"], values="final_val_loss"
    )
    rows = []
    for arm, said in zip(ALONE, ("a delay of 1", "WPipe", "a delay of 3"), strict=True):
        gaps = [losses[of][arm] - losses[of]["sync"] for of in ("adamw", "basis_rotation")]
        rows.append([said, *map(mean, gaps), mean(gaps[0] - gaps[1]), str(len(losses))])
    return table(["", "AdamW", "basis rotation", "AdamW minus it, paired", "n"], rows)
