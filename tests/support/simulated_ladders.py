"""Ladders whose law the test chooses: as rungs, and as a results folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from analysis.forecast.ladder import Ladder, Rung
from tests.support.synthetic_store import put

SIZE = 450_000
"""Parameters of a trial of the synthetic store."""
LENGTHS, BATCHES = (400, 800, 1600, 3200), (128, 512)


class Truth(NamedTuple):
    """χ = exp(c) (T / 1600)^−p (B / 128)^q + floor; sync falls as (T / 1600)^−α (B / 128)^−β."""

    c: float = float(np.log(0.1))
    p: float = 0.6
    q: float = 0.3
    floor: float = 0.0
    alpha: float = 0.25
    beta: float = 0.15
    irreducible: float = 1.2

    def loss(self, updates: float, batch: float) -> float:
        """Of sync, in nats per token."""
        return self.irreducible + self._falling(updates, batch)

    def tax(self, updates: float, batch: float) -> float:
        """The token tax."""
        power = (updates / 1600) ** -self.p * (batch / 128) ** self.q
        return float(1 + np.exp(self.c) * power + self.floor)

    def gap(self, updates: float, batch: float) -> float:
        """s ln(tax)."""
        slope = self.alpha * self._falling(updates, batch)
        return float(slope * np.log(self.tax(updates, batch)))

    def _falling(self, updates: float, batch: float) -> float:
        return float((updates / 1600) ** -self.alpha * (batch / 128) ** -self.beta)


def ladder(
    truth: Truth,
    random: Generator,
    *,
    lengths: Sequence[int] = LENGTHS,
    batches: Sequence[int] = BATCHES,
    seeds: int = 3,
    sd: float = 0.005,
) -> Ladder:
    """With independent normal noise: `sd` of a gap, twice that of a loss."""
    rungs = tuple(
        Rung(
            updates,
            batch,
            SIZE,
            truth.gap(updates, batch) + sd * random.standard_normal(seeds),
            truth.loss(updates, batch) + 2 * sd * random.standard_normal(seeds),
        )
        for updates in lengths
        for batch in batches
    )
    return Ladder("muon", "delay", rungs)


def write(store: Path, of: Ladder) -> None:
    """Its trials: sequences of 64 tokens."""
    for rung in of.rungs:
        keys = {"num_updates": rung.updates, "batch_size": rung.batch // 64, "seq_len": 64}
        losses = rung.losses.tolist()
        delayed = (rung.losses + rung.gaps).tolist()
        put(store, "sync", losses, optimizer=of.optimizer, **keys)
        put(store, of.arm, delayed, optimizer=of.optimizer, **keys)
