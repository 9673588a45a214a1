"""What a search finds beside a grid of as many trials: batch size and learning rate, at micro, of
the model nano.

    python -m bench.search [results=DIR] [samplers=3] [optimizers=adamw,muon]

The grid is that of the sweep `batch_size`, of four batch sizes and four learning rates; the search
has its ranges and its number of settings. Each setting is trained by both arms at the seed of
choice. Printed are, for the grid and for each seed of the sampler, the lowest mean of both arms'
losses at that seed, and each arm's loss at its own best setting at three other seeds. A store that
is named by `results` is kept: the command goes on there.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from sweeps.plan.searching import best, try_settings
from sweeps.plan.tried import TriedSetting, at
from sweeps.request.command_line import parse_request
from sweeps.request.expand import GridPoint, Trial, points
from sweeps.request.schema import Sweep
from sweeps.store.results import final_loss
from trainer.trial import run_trial

RATES, SIZES = (0.002, 0.004, 0.008, 0.016), (2, 4, 8, 16)
CHOICE, SEEDS = (1000,), (0, 1, 2)
BUDGET = len(RATES) * len(SIZES)
WORDS = (
    *("sweep=batch_size", "scale=micro", "model=nano", "num_updates=40", "eval_every=1000"),
    *(f"seeds={[*SEEDS]}", "search=optuna", f"search.budget={BUDGET}", "search.at_once=1"),
    f"search.seeds={[*CHOICE]}",
    f"search.space={{optimizer.lr: {{factors: [0.5, 4]}}, batch_size: {[*SIZES]}}}",
)


def main() -> None:
    """Prints the table."""
    given = dict(word.split("=") for word in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        results, samplers = given.get("results", folder), int(given.get("samplers", 3))
        print("| | tried | best at the seed of choice | sync, other seeds | delay, other seeds |")
        print("| --- | --- | --- | --- | --- |")
        optimizers = given.get("optimizers", "adamw,muon")
        for row in _rows(Path(results), samplers, optimizers):
            print(f"| {' | '.join(row)} |", flush=True)


def _rows(results: Path, samplers: int, optimizers: str) -> Iterator[Sequence[str]]:
    words = [*WORDS, f"grid.optimizer=[{optimizers}]", f"results={results}"]
    [sweep] = parse_request(words).sweeps.values()
    for point in points(sweep, results):
        name = " ".join(point.overrides)
        yield _row(f"{name}, grid", on_grid(point))
        for seed in range(samplers):
            yield _row(f"{name}, search {seed}", by_search(sweep, point, seed))


def on_grid(point: GridPoint) -> list[TriedSetting]:
    """Every setting of the grid, trained."""
    found = []
    for size in SIZES:
        for rate in RATES:
            values = {"optimizer.lr": rate, "batch_size": size}
            there = at(point, values)
            found.append(TriedSetting(values, there, there.trials(CHOICE)))
            train(found[-1].trials)
    return found


def by_search(sweep: Sweep, point: GridPoint, seed: int) -> list[TriedSetting]:
    """As many settings that a sampler proposes, trained."""
    assert sweep.search is not None
    asked = sweep.search.model_copy(update={"sampler_seed": seed})
    while not (found := try_settings(sweep, asked, point)).settled:
        train(found.choosing)
    return found.tried


def train(trials: Collection[Trial]) -> list[float]:
    """Runs those of the trials that are not in the store; returns all final losses."""
    for trial in trials:
        if final_loss(trial) is None:
            run_trial(trial.config)
    return [loss for trial in trials if (loss := final_loss(trial)) is not None]


def _row(name: str, tried: Sequence[TriedSetting]) -> Sequence[str]:
    lowest = min(fmean(found.values()) for setting in tried if (found := setting.losses))
    chosen = best(tried)
    held_out = (_held_out(arm, chosen[arm].point) for arm in ("sync", "delay"))
    return [name, str(len(tried)), f"{lowest:.4f}", *held_out]


def _held_out(arm: str, point: GridPoint) -> str:
    """The mean loss of an arm at the seeds that chose nothing."""
    losses = train([trial for trial in point.trials(SEEDS) if trial.arm == arm])
    return f"{fmean(losses):.4f}"


if __name__ == "__main__":
    main()
