"""Where a point lies outside of the paper's regime: its numbers say little about the paper's."""

from collections.abc import Hashable, Iterator

import pandas as pd

MEMORIES = 100
"""Updates of a run for each update that a momentum remembers, 1 / (1 - momentum), at least: in a
shorter run the buffer is a part of the run itself. In the paper they are more than 500."""
MEAN_FACTOR = 0.55
"""Of the paper's learning-rate schedule, as a share of its peak."""
DECAYED = 1.0
"""Learning rate · weight decay, summed over a run, at least: with less, decay has not forgotten the
initial weights at its end, and does little. In the paper it is about 1.6 to 4."""
TOLERANCE = 1e-6
SHORT = f"T < {MEMORIES} / (1 - momentum)"
INACTIVE = "decay inactive"
MOMENTUM, RATE, DECAY = (f"optimizer.{key}" for key in ("momentum", "lr", "weight_decay"))


def regimes(trials: pd.DataFrame) -> dict[Hashable, str]:
    """Point → which of SHORT and INACTIVE its runs are, in words; empty for neither.

    An optimizer without a momentum or a decay of that name is not judged by it.
    """
    columns = trials.reindex(columns=["point", "num_updates", MOMENTUM, RATE, DECAY])
    numbers = columns.set_index("point").astype("float64")
    longest = numbers.groupby("point").max()  # a run that diverged is shorter
    return {
        row["point"]: ", ".join(_breaks(row)) for row in longest.reset_index().to_dict("records")
    }


def _breaks(row: dict[Hashable, float]) -> Iterator[str]:
    """A comparison with a missing value, NaN, is false."""
    if row["num_updates"] * (1 - row[MOMENTUM]) < MEMORIES - TOLERANCE:
        yield SHORT
    if row[RATE] * row[DECAY] * MEAN_FACTOR * row["num_updates"] < DECAYED - TOLERANCE:
        yield INACTIVE
