"""Simulated stores in which a delay gains nothing, and how often an advice still decides them.

python -m tests.support.simulated_advice [DRAWS]           # the rates that docs/advise.md quotes
python -m tests.support.simulated_advice public [DRAWS]    # those of the call that users make
"""

import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipegap.analysis import advise, load
from pipegap.analysis.advice.advise import answered
from pipegap.analysis.advice.evidence import Evidence, Gap
from pipegap.analysis.advice.speed import TwoSteps, equal_stages, fastest, with_two_steps
from pipegap.analysis.advice.timing import Timing, timing
from pipegap.analysis.advice.verdict import MOST_SEEDS, UNDECIDED, Advice, Decision
from pipegap.analysis.claims.rule import Rate
from pipegap.analysis.statistics.pairs import Values
from pipegap.analysis.statistics.tax import Tax
from tests.support.synthetic_store import put

STAGES, MICROBATCHES, SHORTEST, RATE = 4, 8, 400, 0.004
COMMON, NOISE = 0.02, 0.01
"""Standard deviations of what the runs of one seed share, and of each run by itself, in nats."""


class Shape(NamedTuple):
    """Which runs a store has, and the fastest rival: its speed-up is the true token tax."""

    speed_up: float
    longer: float
    """By which factor delayed runs are longer, beside those that are as long as sync's; 1: none."""
    times: dict[str, object]
    """Measured times, arguments of `timing`."""


def _of_two_steps(name: str, step: float, **more: object) -> dict[str, object]:
    """The times of a pipeline of which a step of half as many microbatches again takes 12 more."""
    steps = TwoSteps({MICROBATCHES: [step], MICROBATCHES * 3 // 2: [step + 12]})
    costs = with_two_steps(equal_stages(STAGES), MICROBATCHES, name, steps)
    return {"costs": costs, "two_steps": {name: steps}, **more}


SHAPES = {
    "main": Shape(25.5 / 24, 25.5 / 24, {}),
    "ladder": Shape(25.5 / 24, 1.0, {}),
    "measured": Shape(1.05, 1.05, {"measured": {"fsdp": [25.2]}, "own_times": [24.0]}),
    "a V by two steps": Shape(1.1, 1.1, _of_two_steps("ZB-V", 26.4)),
    "a V by two steps, and 2BW": Shape(1.1, 1.1, _of_two_steps("ZB-V", 26.4, own_times=[24.0])),
    "1F1B by two steps": Shape(33.6 / 32.1, 33.6 / 32.1, _of_two_steps("1F1B", 41.1)),
}
"""`main`: beside each run of sync a delayed one of exactly the length that the rival's time allows;
`ladder`: lengths that double, as of a horizon or `grid.num_updates=[…]`; `measured`: as `main`,
against a rival whose steps and those of 2BW were timed; `by two steps`: with what a step costs
beyond its work, of a V all of it bubble, though 1.5 of 2.4 are simulated, of 1F1B 8.1 of a host."""


@dataclass(frozen=True)
class Kind:
    """Stores of one kind: at `num_lengths` lengths of training sync and each arm have runs."""

    shape: str
    num_lengths: int
    num_arms: int
    n: int
    num_settings: int = 1

    @property
    def arms(self) -> list[str]:
        return ["delay", "delay_ef"][: self.num_arms]

    @property
    def sync_lengths(self) -> list[int]:
        return [SHORTEST * 2**index for index in range(self.num_lengths)]

    @property
    def lengths(self) -> list[int]:
        """Of the delayed runs."""
        longer = (round(length * SHAPES[self.shape].longer) for length in self.sync_lengths)
        return sorted({*self.sync_lengths, *longer})

    def draw(self, rng: np.random.Generator) -> list[dict[str, dict[int, Values]]]:
        """For each setting, final losses [seeds] by arm and length."""
        common, tax = rng.normal(0, COMMON, self.n), SHAPES[self.shape].speed_up
        return [
            {
                arm: {
                    length: law(length / slower) + common + rng.normal(0, NOISE, self.n)
                    for length in lengths
                }
                for arm, slower, lengths in (
                    ("sync", 1.0, self.sync_lengths),
                    *((arm, tax, self.lengths) for arm in self.arms),
                )
            }
            for _ in range(self.num_settings)
        ]


def law(updates: float) -> float:
    """The final loss of sync by the length of the run."""
    return 1.2 + 0.9 * (updates / 2000) ** -0.22


@cache
def timed(shape: str) -> tuple[Timing, str]:
    """The fastest rival alone, which costs no time for the others; its name."""
    times = timing(
        **{"costs": equal_stages(STAGES)} | SHAPES[shape].times, num_microbatches=MICROBATCHES
    )
    name = fastest(times.rivals, times.most)
    return replace(times, rivals={name: times.rivals[name]}), name


def evidences(kind: Kind, losses: Sequence[dict[str, dict[int, Values]]]) -> list[Evidence]:
    """What `evidence` makes of the losses: at each length the setting at which sync is best."""
    return [
        Evidence(
            "",
            {},
            updates,
            0.0,
            tuple(
                Gap(float(i), arm, kind.n, 0.0, (0, 0), 0, kind.n, False, 0.0, (0, 0), Tax())
                for i, arm in enumerate(kind.arms)
            ),
            {
                arm: {
                    seed: {length: float(by_seed[seed]) for length, by_seed in by_length.items()}
                    for seed in range(kind.n)
                }
                for arm, by_length in best.items()
            },
            num_settings=kind.num_settings,
        )
        for updates in reversed(kind.sync_lengths)
        for best in [min(losses, key=lambda setting: setting["sync"][updates].mean())]
    ]


def decision(kind: Kind, losses: Sequence[dict[str, dict[int, Values]]]) -> Decision:
    """The verdict against the fastest rival, and what would settle it."""
    times, rival = timed(kind.shape)
    return answered(evidences(kind, losses), np.inf, times, rival)["verdict"]


def verdict(kind: Kind, losses: Sequence[dict[str, dict[int, Values]]]) -> str:
    """The verdict alone."""
    return decision(kind, losses).word


@cache
def table(kind: Kind) -> pd.DataFrame:
    """`load`'s table of a store of this kind, whose losses are replaced by those of each draw."""
    runs = [("sync", kind.sync_lengths), *((arm, kind.lengths) for arm in kind.arms)]
    with tempfile.TemporaryDirectory() as folder:
        for setting, (arm, lengths) in product(range(kind.num_settings), runs):
            for length in lengths:
                rate = RATE * (1 + setting)
                put(Path(folder), arm, [1.0] * kind.n, num_updates=length, lr=rate)
        return load(Path(folder))


def public_verdict(kind: Kind, losses: Sequence[dict[str, dict[int, Values]]]) -> str:
    """The same from `advise`, as users call it."""
    trials = table(kind).copy()
    settings = (trials["optimizer.lr"].astype(float) / RATE - 1).round().astype(int)
    columns = (settings, trials["arm"], trials["num_updates"], trials["seed"])
    trials["final_val_loss"] = [
        losses[setting][arm][length][seed]
        for setting, arm, length, seed in zip(*columns, strict=True)
    ]
    shape = {"stages": STAGES, "microbatches": MICROBATCHES, **SHAPES[kind.shape].times}
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return advise(trials, optimizer="adamw", **shape).verdict.word


def rate(kind: Kind, draws: int, *, public: bool = False) -> Rate:
    """In how many stores *go* or *stay* is said, though in the same time the losses are equal."""
    rng = np.random.default_rng([draws, *map(ord, repr(kind))])
    verdict_of = public_verdict if public else verdict
    words = [verdict_of(kind, kind.draw(rng)) for _ in range(draws)]
    return Rate(draws - words.count(UNDECIDED), draws)


def rate_if_asked_again(kind: Kind, draws: int) -> Rate:
    """The same if each verdict of not enough data is followed by a question with as many seeds as
    it names, until one decides or MOST_SEEDS have run."""
    rng, num_decided = np.random.default_rng([draws, kind.n]), 0
    for _ in range(draws):
        all_seeds, n = replace(kind, n=MOST_SEEDS).draw(rng), kind.n
        while n <= MOST_SEEDS:
            losses = [
                {arm: {k: by_seed[:n] for k, by_seed in of.items()} for arm, of in setting.items()}
                for setting in all_seeds
            ]
            answer = decision(replace(kind, n=n), losses)
            if answer.word != UNDECIDED:
                num_decided += 1
                break
            n = max(n + 1, len(answer.settle.get("seeds", ())))
    return Rate(num_decided, draws)


def kinds() -> Iterator[Kind]:
    for shape, num_lengths, num_arms, n in product(SHAPES, (1, 2, 3, 5), (1, 2), (3, 5, 8)):
        yield Kind(shape, num_lengths, num_arms, n)
    for num_settings, num_lengths, n in product((2, 5), (1, 3), (3, 5, 8)):
        yield Kind("main", num_lengths, 1, n, num_settings)


def main(words: Sequence[str]) -> None:
    public = "public" in words
    draws = next((int(word) for word in words if word.isdigit()), 200 if public else 3_000)
    shown = [k for k in kinds() if not public or (k.num_lengths, k.n, k.num_settings) == (5, 3, 1)]
    rates = {}
    for kind in shown:
        rates[kind] = rate(kind, draws, public=public)
        print(f"{rates[kind]}  {kind}", flush=True)
    most = max(rates.values(), key=lambda of_kind: of_kind.share)
    num = sum(of_kind.num for of_kind in rates.values())
    print(f"{len(rates)} kinds of {draws} stores: {Rate(num, draws * len(rates))}, at most {most}")
    if not public:
        for n in (3, 5, 8):
            again = rate_if_asked_again(Kind("main", 1, 1, n), draws)
            print(f"{again}  asked again with more seeds, from {n} on")


def ask(store: Path, stages: int = 4, microbatches: int = 8, **more: Any) -> Advice:
    """An advice on a store of the test's own."""
    more = {"optimizer": "adamw", "stages": stages, "microbatches": microbatches} | more
    return advise(load(store), **more)


if __name__ == "__main__":
    main(sys.argv[1:])
