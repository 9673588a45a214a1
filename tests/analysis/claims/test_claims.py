"""Each claim of the paper is judged by its rule: reproduced, contradicted, not enough data."""

import json
from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis import load
from pipegap.analysis.claims import Outcome, judged
from tests.support.claim_stores import (
    BY_NAME,
    COOLED,
    LONG,
    MOE,
    NO,
    OPEN,
    ROBUST,
    SIX,
    SPREAD,
    STARTED,
    WIDE,
    YES,
    Group,
    answered,
    coefficients,
    depths,
    feedback,
    of,
    rates,
    starts,
    store,
    swept,
    verdict,
)
from tests.support.simulated_claims import AUDITED
from tests.support.synthetic_store import config, result, write

CASES: dict[str, dict[Outcome, list[Group]]] = {
    "delay_costs": {YES: [Group(0.1)], NO: [Group(-0.1)], OPEN: [Group(0.1, spread=WIDE)]},
    "adamw_over_muon": {
        YES: of({"adamw": 0.3, "muon": 0.1}),
        NO: of({"adamw": 0.1, "muon": 0.3}),
        OPEN: of({"adamw": 0.3}),
    },
    "adamw_over_muon_own": {
        YES: [*swept("lr", {0.1: 0.3}), *swept("lr", {0.4: 0.1}, optimizer="muon")],
        NO: [*swept("lr", {0.1: 0.1}), *swept("lr", {0.4: 0.3}, optimizer="muon")],
        OPEN: [*swept("lr", {0.1: 0.1}), *swept("lr", {0.4: 0.1}, optimizer="muon")],
    },
    "robust_three": {
        YES: of({"muon": 0.1, "soap": 0.2, "adamw": 0.3}),
        NO: of({"muon": 0.2, "soap": 0.1, "adamw": 0.3}),
        OPEN: of({"muon": 0.1, "soap": 0.1, "adamw": 0.3}),
    },
    "order": {
        YES: of({"adamw": 0.3, "mars": 0.4, **ROBUST}),
        NO: of({"adamw": 0.3, "mars": 0.4, **ROBUST, "soap": 0.5}),
        OPEN: of({"adamw": 0.3, **ROBUST}),
    },
    "lion_between": {
        YES: of({"adamw": 0.3, "mars": 0.4, "lion": 0.2, **ROBUST}),
        NO: of({"adamw": 0.3, "mars": 0.4, "lion": 0.05, **ROBUST}),
        OPEN: of({"adamw": 0.3, "mars": 0.4, "lion": 0.1, **ROBUST}),
    },
    "ef_helps": {
        YES: feedback(0.4, 0.1),
        NO: feedback(0.4, 0.5),
        OPEN: feedback(0.01, 0.009, spread=WIDE),
    },
    "ef_most": {
        YES: feedback(0.4, 0.1),
        NO: feedback(0.4, 0.3),
        OPEN: feedback(0.4, 0.1, spread=(0.0, 0.05, -0.05)),
    },
    "momentum": {
        YES: swept("momentum", {0.8: 0.4, 0.9: 0.3, 0.99: 0.1}, LONG),
        NO: swept("momentum", {0.8: 0.1, 0.9: 0.3, 0.99: 0.4}, LONG),
        OPEN: swept("momentum", {0.8: 0.4, 0.99: 0.4}, LONG),
    },
    "depth": {
        YES: depths({2: 0.1, 4: 0.6, 8: 0.5}),
        NO: depths({2: 0.5, 8: 0.1}),
        OPEN: depths({2: 0.1, 8: 0.1}),
    },
    "best_over_grid": {
        YES: swept("lr", {0.1: 0.0, 0.2: 0.5}, optimizer="muon"),
        NO: swept("lr", {0.1: 0.1, 0.2: 0.5}, optimizer="muon"),
        OPEN: swept("lr", {0.1: 0.0, 0.2: 0.5}, optimizer="muon", spread=WIDE),
    },
    "large_batches": {
        YES: swept("batch_size", {8: 0.1, 16: 0.5}),
        NO: swept("batch_size", {8: 0.5, 16: 0.1}),
        OPEN: swept("batch_size", {8: 0.1}),
    },
    **{
        name: {
            YES: feedback(0.1, 0.0, keys={"num_updates": 800}),
            NO: feedback(0.1, 0.05, keys={"num_updates": 800}),
            OPEN: feedback(0.0, 0.0, keys={"num_updates": 800}),
        }
        for name in ("horizon", "moe_horizon")
    },
    "moe_rate": {
        YES: rates({0.1: 0.45, 0.2: 0.4, 0.4: 0.6}),
        NO: rates({0.1: 0.1, 0.2: 0.4, 0.4: 0.6}),
        OPEN: rates({0.1: 0.39, 0.2: 0.4, 0.4: 0.6}),
    },
    "families_muon": {
        YES: [*of({"adamw": 0.3, "muon": 0.1}), *of({"adamw": 0.3, "muon": 0.1}, keys=MOE)],
        NO: [*of({"adamw": 0.3, "muon": 0.1}), *of({"adamw": 0.1, "muon": 0.3}, keys=MOE)],
        OPEN: [*of({"adamw": 0.3, "muon": 0.1}), *of({"adamw": 0.3, "muon": 0.3}, keys=MOE)],
    },
    "families_ef": {
        YES: [*feedback(0.4, 0.1), *feedback(0.3, 0.2, keys=MOE)],
        NO: [*feedback(0.4, 0.1), *feedback(0.3, 0.4, keys=MOE)],
        OPEN: [*feedback(0.4, 0.1), *feedback(0.0, 0.0, keys=MOE)],
    },
    "coefficient": {
        YES: coefficients("ef", {0.5: 0.2, 1.0: 0.1, 1.25: 0.098, 1.5: 0.11}),
        NO: coefficients("ef", {0.5: 0.25, 1.0: 0.2, 1.25: 0.05}),
        OPEN: coefficients("ef", {0.5: 0.2, 1.0: 0.4}),
    },
    "taylor": {
        YES: coefficients("taylor", {100.0: 0.4, 1000.0: 0.5}),
        NO: coefficients("taylor", {100.0: 0.39, 1000.0: 0.2}),
        OPEN: coefficients("taylor", {100.0: 0.4, 1000.0: 0.4}),
    },
    "gradient_feedback": {
        YES: coefficients("ef_gradient", {1.0: None}, spread=SIX),
        NO: coefficients("ef_gradient", {1.0: 0.2}, spread=SIX),
        OPEN: [Group(0.4)],
    },
    "spike": {
        YES: starts({0.99: 1.0}),
        NO: starts({0.99: -1.0}, spread=SPREAD),
        OPEN: starts({0.99: 0.1}, spread=WIDE),
    },
    "spike_by_decay": {
        YES: starts({0.9: 0.5, 0.999: 1.0}),
        NO: [*starts({0.9: 1.0}), *starts({0.999: 1.0}, spread=SPREAD[::-1])],
        OPEN: [*starts({0.9: 1.0}), *starts({0.999: 1.5}, spread=WIDE)],
    },
    "start": {
        YES: [Group(0.4), Group(0.1, pipeline=STARTED)],
        NO: [Group(0.1), Group(0.4, pipeline=STARTED)],
        OPEN: [Group(0.1, pipeline=STARTED)],
    },
    **{
        name: {
            YES: answered(0.0, spread=(0.0, 0.0, 0.0)),
            NO: answered(-3.0),
            OPEN: answered(0.0, spread=WIDE),
        }
        for name in ("downstream", "downstream_bits")
    },
    "cooldown": {
        YES: [Group(0.4), Group(0.1, pipeline=COOLED)],
        NO: [Group(0.1), Group(0.4, pipeline=COOLED)],
        OPEN: [Group(0.1, pipeline=COOLED)],
    },
}


def test_every_claim_is_tested() -> None:
    assert set(CASES) == set(BY_NAME)
    assert all(set(by_outcome) == {*Outcome} for by_outcome in CASES.values())


@pytest.mark.parametrize("outcome", [*Outcome])
@pytest.mark.parametrize("name", CASES)
def test_known_answers(name: str, outcome: Outcome, tmp_path: Path) -> None:
    store(tmp_path, CASES[name][outcome])
    judgement = verdict(name, tmp_path)
    assert judgement.outcome == outcome, judgement
    assert {type(comparison.rule) for comparison in judgement.comparisons} <= AUDITED
    if outcome != OPEN:
        assert all(part.numbers for part in judgement.parts)
    else:
        assert any(part.why for part in judgement.parts)


@pytest.mark.parametrize("name", BY_NAME)
def test_no_claim_is_decided_by_one_seed_or_short_trials(name: str, tmp_path: Path) -> None:
    for folder, groups, updates in (
        ("seed", [group._replace(spread=[0.0]) for group in CASES[name][YES]], 400),
        ("short", CASES[name][YES], 99),
    ):
        store(tmp_path / folder, groups, updates)
        if folder == "short":
            for path in (tmp_path / folder).rglob("result.json"):
                path.write_text(json.dumps({**json.loads(path.read_text()), "num_updates": 99}))
        assert verdict(name, tmp_path / folder).outcome == OPEN


@pytest.fixture(scope="module")
def only_sync(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The trials of a sweep of which only sync is done."""
    folder, settings = tmp_path_factory.mktemp("sync"), config("sync")
    write(folder, settings, result(settings, 2.0))
    return load(folder)


@pytest.mark.parametrize("name", BY_NAME)
def test_trials_that_say_nothing_of_a_claim(name: str, only_sync: pd.DataFrame) -> None:
    judgement = judged(BY_NAME[name], only_sync)
    assert judgement.outcome == OPEN
    assert all(part.why for part in judgement.parts)
    assert judged(BY_NAME[name], only_sync[:0]).outcome == OPEN
