"""Every schedule of conf/pipeline/ has the delays of its paper and trains the equations."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise, product
from math import ceil
from typing import Any

import pytest

from pipegap.trainer.base.build import build
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.compose import compose
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.schedules.operations import Schedule
from tests.oracles.corrections import PLAIN
from tests.support.delayed import T, counted
from tests.support.every_correction import Setting, error
from tests.support.small import later_wins

NAMES = sorted(path.stem for path in (CONF / "pipeline").glob("*.yaml"))
STAGES, START, COOLDOWN = 4, 3, 2
DELAYS: dict[str, Callable[[int, int], int]] = {
    "constant_delay": lambda stage, m: 3,
    "dualpipe_v": lambda stage, m: 0,
    "gpipe": lambda stage, m: 0,
    "interleaved_1f1b": lambda stage, m: 0,
    "paci": lambda stage, m: ceil((STAGES - 1 - stage) / m),
    "pipedream": lambda stage, m: ceil((STAGES - 1 - stage) / m),
    "pipedream_2bw": lambda stage, m: 1,
    "sync": lambda stage, m: 0,
    "wpipe": lambda stage, m: int(stage < STAGES / 2),
    "zero_bubble_h1": lambda stage, m: 0,
    "zero_bubble_v": lambda stage, m: 0,
}
"""(stage of four, number of microbatches) → how many updates old a gradient is at most."""
WORDS = {
    "constant_delay": ["pipeline.delay=3"],
    "dualpipe_v": ["pipeline.num_stages=2"],
    "interleaved_1f1b": ["pipeline.num_stages=2"],
    "wpipe": ["pipeline.num_stages=2"],
    "zero_bubble_v": ["pipeline.num_stages=2"],
}
"""What a choice needs beside four stages."""
LEAST = {"dualpipe_v": 4, "pipedream_2bw": 3}
"""Microbatches that a choice needs for them."""

every = pytest.mark.parametrize(("name", "m"), [*product(NAMES, (2, 4))])


def _node(name: str) -> dict[str, Any]:
    return compose([f"pipeline={name}"])["pipeline"]


def schedule(name: str, m: int) -> Schedule:
    """Four stages, with synchronous updates at both ends if the choice has keys for them."""
    m = max(m, LEAST.get(name, 1))
    phases = {"pipeline.synchronous_start": START, "pipeline.synchronous_cooldown": COOLDOWN}
    node = _node(name)
    words = [f"{key}={value}" for key, value in phases.items() if key.split(".")[1] in node]
    words = [f"pipeline={name}", "pipeline.num_stages=4", f"pipeline.num_microbatches={m}", *words]
    words = later_wins([*words, *WORDS.get(name, []), "batch_size=12"])
    made: Schedule = build(compose(words)["pipeline"], T)
    assert made.num_stages == STAGES
    return made


def test_every_choice_has_delays_here() -> None:
    assert set(NAMES) == set(DELAYS)


@every
def test_its_delays_are_those_of_its_paper(name: str, m: int) -> None:
    """Counted from the operations, which are proven to run."""
    made = schedule(name, m)
    start, cooldown = (START, COOLDOWN) if "synchronous_start" in _node(name) else (0, 0)
    for stage, of_stage in enumerate(counted(made)):
        lag = DELAYS[name](stage, made.num_microbatches)
        late = [min(t, lag) for t in range(T - start - cooldown)]
        assert of_stage == [0] * start + late + [0] * cooldown


@every
def test_every_microbatch_goes_forward_and_back_once(name: str, m: int) -> None:
    made = schedule(name, m)
    ran: Counter[tuple[str, int, int, int]] = Counter()
    for first, last in pairwise(made.phases):
        for op in (op for ops in made.operations(first, last) for op in ops):
            ran[op.kind, op.stage, op.batch, op.microbatch] += 1
    last = made.num_microbatches - 1
    kinds = "FIW" if made.splits_backward else "FB"
    every = product(kinds, range(STAGES), range(T), range(last + 1))
    updates = product("U", range(STAGES), range(T), [last])
    assert ran == Counter([*every, *updates])


@every
def test_it_trains_the_equations(name: str, m: int) -> None:
    made = schedule(name, m)
    if made.in_place:
        pytest.skip("its backwards read other weights than its forwards: see test_paci.py")
    setting = Setting(made, made.first_delayed, made.first_cooldown)
    assert error(NoCorrection, PLAIN, setting) < 1e-11
