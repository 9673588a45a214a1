"""The spike at the switch is measured as its docstring says, on curves with known answers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipegap.analysis import load
from pipegap.analysis.statistics.diagnostics import WINDOW, measure, spikes
from pipegap.analysis.statistics.intervals import mean_intervals
from tests.support.synthetic_store import config, result, write

LEVEL = 2.0


def curve(*pieces: tuple[float, int]) -> Any:
    """So many updates at each loss."""
    return np.concatenate([np.full(count, loss) for loss, count in pieces])


def add(store: Path, start: float, losses: Any, *, seed: int = 0, **changes: Any) -> None:
    """A trial with those losses, and its synchronous partner, whose loss is LEVEL throughout."""
    keys = {"num_updates": changes.pop("asked", len(losses))}
    keys |= {key: changes.pop(key) for key in [*changes] if key in config()}
    for arm, curve_of_arm in (("delay", losses), ("sync", [LEVEL] * len(losses))):
        settings = config(arm, seed=seed) | keys
        if arm == "delay":
            settings["pipeline"]["synchronous_start"] = start
        folder = write(store, settings, result(settings, 1.0, **changes))
        rows = [{"update": t, "train_loss": loss} for t, loss in enumerate(curve_of_arm)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def measured(after: Any, sync: float = LEVEL) -> tuple[float, float]:
    own = np.concatenate([np.full(WINDOW, LEVEL), after])
    return measure(own, np.full(len(own), sync))


@pytest.mark.parametrize(
    ("after", "height", "recovery"),
    [
        # Of a window's 10 losses 7 must be 1.5 for a mean of no more than 2: 3.0 · 3 + 1.5 · 7.
        (curve((3.0, 30), (1.5, 50)), 1.0, 30 + 7),
        (curve((LEVEL, 5), (4.0, 1), (LEVEL, 60)), 2.0 / WINDOW, 6 + WINDOW),
        (curve((LEVEL, WINDOW), (9.0, 50)), 0.0, 0),
        (curve((LEVEL, WINDOW)), 0.0, 0),
        (curve((LEVEL, 50)), 0.0, 0),
        (curve((1.5, 50)), -0.5, 0),
        (curve((2.5, 50)), 0.5, np.nan),
        (curve((LEVEL, 20), (np.nan, 5)), 0.0, 0),
        (curve((np.nan, 20)), np.nan, np.nan),
        (curve((LEVEL, WINDOW - 1)), np.nan, np.nan),
    ],
    ids=[
        *("a plateau", "short: the window averages it", "what happens later is no spike"),
        *("a window is enough", "level", "below sync", "stays: no recovery"),
        *("a loss that is not finite later", "losses that are not finite", "too few updates"),
    ],
)
def test_height_and_recovery(after: Any, height: float, recovery: float) -> None:
    assert measured(after) == pytest.approx((height, recovery), nan_ok=True)


def test_without_the_losses_of_sync_there_is_no_height() -> None:
    assert np.isnan(measured(np.full(50, LEVEL), sync=np.nan)).all()


def test_what_sync_does_at_the_same_updates_is_no_spike() -> None:
    """Hard batches raise both losses; a falling loss hides a spike but for sync's."""
    batches = np.random.default_rng(0).normal(0, 1.0, 100)
    falling = np.linspace(3.0, 1.0, 100) + batches
    assert measure(falling, falling) == (0.0, 0.0)
    late = falling + np.where(np.arange(100) < WINDOW, 0.0, 0.05)
    assert measure(late, falling)[0] == pytest.approx(0.05)


@pytest.mark.parametrize("slope", [0.0, 4.0])
def test_a_placebo_without_a_delay_has_a_spike_in_5_percent(slope: float) -> None:
    """Of stores of three seeds: two runs see the same batches, whether or not the loss falls."""
    rng, stores = np.random.default_rng(0), 600
    batches = rng.normal(0, 0.1, (stores, 3, 2 * WINDOW)) - np.linspace(0, slope, 2 * WINDOW)
    arm, sync = batches + rng.normal(0, 0.01, (2, *batches.shape))
    pairs = zip(arm.reshape(-1, 2 * WINDOW), sync.reshape(-1, 2 * WINDOW), strict=True)
    heights = np.array([measure(*pair)[0] for pair in pairs]).reshape(stores, 3)
    low, high = mean_intervals(heights)
    assert np.mean((low > 0) | (high < 0)) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / stores)


@pytest.mark.parametrize(
    ("start", "changes", "switch"),
    [
        (30, {}, 30),
        (1, {}, 1),
        (0.3, {}, 30),
        (0.5, {"asked": None, "tokens_per_parameter": 8.0, "num_parameters": 25_600}, 50),
    ],
    ids=["updates", "one update", "share of the updates", "share of tokens"],
)
def test_the_switch_counts_updates_or_is_a_share(
    start: float, changes: dict[str, Any], switch: int, tmp_path: Path
) -> None:
    add(tmp_path, start, [2.0] * 100, **changes)
    add(tmp_path, 0.25, [2.0] * 100, seed=1)  # beside a share, a count is a float in the table
    table = spikes(load(tmp_path)).set_index("seed")
    assert table["switch"].to_dict() == {0: switch, 1: 25}


def test_the_arm_has_the_mean_of_its_seeds(tmp_path: Path) -> None:
    for seed, top in enumerate((3.0, 4.0)):
        add(tmp_path, 20, curve((2.0, 20), (top, 20), (2.0, 60)), seed=seed)
    add(tmp_path, 20, curve((2.0, 20), (5.0, 80)), seed=2)
    table = spikes(load(tmp_path))
    assert table["height"].tolist() == pytest.approx([1.0, 2.0, 3.0])
    assert table[["n", "mean_height", "recovered"]].drop_duplicates().to_numpy().tolist() == [
        [3, 2.0, 2]
    ]
    assert (table["low"] < 2.0).all()
    assert table["arm"].unique().tolist() == ["delay+start(20)"]


def test_trials_that_are_deleted_meanwhile_have_no_spike(tmp_path: Path) -> None:
    for seed in range(3):
        add(tmp_path, 20, curve((2.0, 20), (3.0, 20), (2.0, 60)), seed=seed)
    trials = load(tmp_path)
    shutil.rmtree(trials["folder"][(trials["seed"] == 0) & (trials["delay"] > 0)].item())
    table = spikes(trials)
    assert table.set_index("seed")["height"].fillna(-1).to_dict() == {0: -1, 1: 1, 2: 1}
    assert table["n"].unique().tolist() == [2]
