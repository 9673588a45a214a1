"""The trials that run now."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from trainer.base.status import FINAL
from trainer.folder.lease import holder
from trainer.folder.metrics import last_row


class Running(NamedTuple):
    """One trial that a process runs, in words."""

    trial_id: str
    optimizer: str
    arm: str
    seed: str
    update: str
    loss: str
    speed: str
    where: str


def running(trials: pd.DataFrame) -> list[Running]:
    """Those of the table that have no final result and that a process holds."""
    rows = trials.loc[~trials["status"].isin(FINAL)].to_dict("records")
    return [now for row in rows if (now := _running(row)) is not None]


def _running(row: dict[Any, Any]) -> Running | None:
    folder = Path(row["folder"])
    held = holder(folder)
    if held is None:
        return None
    last = last_row(folder) or {}
    speed = last.get("tokens_per_second")
    return Running(
        row["trial_id"],
        str(row["optimizer"]),
        str(row["arm"]),
        str(row["seed"]),
        _update(last.get("update"), row["num_updates"]),
        f"{last['train_loss']:.4f}" if last.get("train_loss") is not None else "",
        f"{speed:,.0f}" if speed else "",
        f"{held.get('host', '?')} pid {held.get('pid', '?')}",
    )


def _update(update: int | None, asked: Any) -> str:
    done = 0 if update is None else update + 1
    return f"{done:,}" if pd.isna(asked) else f"{done:,} of {asked:,}"
