"""The table of the sweep `remedies`, in docs/findings.md."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.statistics.text import tax_text
from analysis.table.names import arms
from analysis.table.names import optimizer as name
from bench.documents.cells import gap, mean, removed, table
from bench.documents.published import Published, view
from sweeps.request.command_line import parse_request
from sweeps.request.expand import points
from trainer.base.build import label

ALONE = {
    "delay": "a delay of 1",
    "wpipe": "WPipe",
    "paci": "PACI",
    "constant_delay(3)": "a delay of 3",
}
"""The arms that no correction or phase has touched, one for each pipeline."""


def every_remedy(of: Published, scale: str, updates: int) -> str:
    """One row per optimizer and arm at this length, by the pipeline and then by the gap.

    What a remedy saves is the gap of its pipeline alone minus its own, paired by seed. Memory is
    that of weights, gradients and states, as a plan counts them; time is that of an update, by
    medians over all trials.
    """
    trials, found = view(of)
    named, memory = arms(trials), _memory(scale)
    speed = trials.groupby(["optimizer", "arm"])["tokens_per_second"].median()
    losses = _losses(trials, updates)
    shown = found[(found["pairs"] > 0) & found["point"].isin(_points(trials, updates))]
    shown = shown.assign(pipeline=shown["arm"].map(_pipeline))
    rows = []
    for row in shown.sort_values(["optimizer", "pipeline", "gap"]).to_dict("records"):
        optimizer, alone, arm = row["optimizer"], row["pipeline"], row["arm"]
        own = losses[optimizer]
        costs = [
            tax_text(row),
            f"{memory[optimizer, arm] / memory[optimizer, 'sync']:.2f}",
            f"{speed[optimizer, 'sync'] / speed[optimizer, arm]:.2f}",
        ]
        saves = "" if arm == alone else mean(own[alone] - own[arm])
        rows.append([name(optimizer), named[arm], gap(row), saves, removed(row), *costs])
    heads = ["optimizer", "arm", "gap", "less than without, paired", "gap removed"]
    return table([*heads, "token tax", "memory / sync's", "time / sync's"], rows)


def predicted(of: Published, updates: int) -> str:
    """The differences of losses that the sweep's predictions are about, paired by seed."""
    three = "constant_delay(3)"
    pairs = {
        "delay of 3: EF minus EF matched": (f"{three}_ef", f"{three}_matched_ef"),
        "delay of 3: EF matched, lag τ, minus EF matched": (
            f"{three}_matched_ef(lag=delay)",
            f"{three}_matched_ef",
        ),
        "delay minus WPipe": ("delay", "wpipe"),
        "WPipe minus PACI": ("wpipe", "paci"),
    }
    losses = _losses(view(of).trials, updates)
    rows = [
        [name(optimizer), *(mean(own[one] - own[other]) for one, other in pairs.values())]
        for optimizer in sorted({*losses.columns.get_level_values("optimizer")})
        for own in [losses[optimizer]]
    ]
    return table(["optimizer", *pairs], rows)


def rotated(of: Published, updates: int) -> str:
    """The gaps of basis rotation beside AdamW's, by delay, paired by seed."""
    losses = _losses(view(of).trials, updates)
    rows = []
    for arm, said in ALONE.items():
        gaps = [losses[of][arm] - losses[of]["sync"] for of in ("adamw", "basis_rotation")]
        rows.append([said, *map(mean, gaps), mean(gaps[0] - gaps[1]), str(len(losses))])
    return table(["", "AdamW", "basis rotation", "AdamW minus it, paired", "n"], rows)


def _points(trials: pd.DataFrame, updates: int) -> pd.Series:
    return trials.loc[trials["num_updates"] == updates, "point"]


def _losses(trials: pd.DataFrame, updates: int) -> pd.DataFrame:
    """One row per seed, one column per optimizer and arm."""
    at_length = trials[trials["num_updates"] == updates]
    columns = ["optimizer", "arm"]
    return at_length.pivot_table(index="seed", columns=columns, values="final_val_loss")


def _memory(scale: str) -> dict[tuple[str, str], int]:
    """Bytes of a trial of each optimizer and arm."""
    [sweep] = parse_request(["sweep=remedies", f"scale={scale}"]).sweeps.values()
    return {
        (label(config["optimizer"]), arm): point.plan(config).memory_bytes
        for point in points(sweep, Path("results"))
        for arm, config in point.configs.items()
    }


def _pipeline(arm: str) -> str:
    """The arm that this one adds a remedy to."""
    return next(alone for alone in ALONE if arm.startswith(alone))
