"""How often each claim's rule errs, on simulated stores at the margin of its claim.

At 3 to 16 seeds, each rule calls a claim that is just false reproduced in at most 5 %, and one that
is just true contradicted in at most 5 %.
"""

from __future__ import annotations

import pytest

from analysis.claims.above import near_best, near_best_of_arm, removes
from analysis.claims.audit import audit
from analysis.claims.claim import against
from analysis.claims.corrections import Diverges, NoHelp
from analysis.claims.downstream import Equal
from analysis.claims.measure import AtBest
from analysis.claims.swept import BestBelow
from analysis.claims.switches import Either
from analysis.statistics.crossed import Noise
from tests.support.simulated_claims import (
    GAP,
    LARGER,
    MOST,
    ORDER,
    SLACK,
    STORES,
    Part,
    stored_parts,
)

SEEDS = (3, 5, 8, 16)
FLAT = [2.0] * 6
NOISE = Noise(questions=1e-5, rest=1e-5, num_questions=500)
PARTS: dict[str, list[Part]] = {
    "delay_costs": [(GAP, [0.1])] * 7,
    "adamw_over_muon": [(LARGER, [0.1, 0.3])],
    "adamw_over_muon_own": [(LARGER, [0.1, 0.3])],
    "robust_three": [(LARGER, [0.1, 0.3])] * 2,
    "order": ORDER,
    "lion_between": [(LARGER, [0.1, 0.2])] * 6,
    "ef_helps": [(removes(0.0), [0.4, 0.1])] * 7,
    "ef_most": [(removes(0.5, 0.9), [0.4, 0.1])] * 7,
    "momentum": [(LARGER, [0.1, 0.4])] * 2,
    "depth": [(LARGER, [0.1, 0.4])] * 2,
    "best_over_grid": [(BestBelow(0.01, "best", 6), FLAT * 2)],
    "large_batches": [
        (
            AtBest(LARGER.contrasts, points=(3, 6), names=("8", "64")),
            [2.0] * 3 + [0.1] * 3 + FLAT + [0.4] * 6,
        )
    ],
    "horizon": [(removes(0.8), [0.1, 0.005])] * 2,
    "moe_horizon": [(removes(0.8), [0.1, 0.005])] * 2,
    "moe_rate": [(near_best_of_arm("abcd", 1), [0.5, 0.4, 0.42, 0.6])] * 6,
    "families_muon": [(LARGER, [0.1, 0.3])] * 3,
    "families_ef": [(removes(0.0), [0.4, 0.1])] * 6,
    "coefficient": [(near_best([0.5, 0.75, 1.0, 1.25, 1.5]), [0.4, 0.2, 0.15, 0.1, 0.1, 0.12])] * 2,
    "taylor": [(NoHelp((1e2, 1e3, 1e4)), [0.4, 0.4, 0.4, 0.6])] * 2,
    "gradient_feedback": [(Diverges(), [1.0, 1.0])],
    "start": [(LARGER, [0.1, 0.3])] * 7,
    "spike": [(GAP, [0.3])] * 8,
    "spike_by_decay": [(Either("change"), [0.3, 0.5])],
    "cooldown": [(LARGER, [0.1, 0.3])] * 8,
    "downstream": [(Equal(0.03, (NOISE, NOISE)), [0.3, 0.002])] * 4,
    "downstream_bits": [(Equal(0.03, (NOISE, Noise(0.0, 1e-5, 500))), [3.0, 0.002])] * 4,
}
"""Parts of claims, by a name; a claim of rules that are here already needs none."""
AUDITED = {type(rule) for parts in PARTS.values() for rule, _ in parts}


@pytest.mark.parametrize("n", SEEDS)
@pytest.mark.parametrize("name", PARTS)
def test_no_claim_is_called_what_it_is_not(name: str, n: int) -> None:
    parts = stored_parts(PARTS[name], n)
    found = audit(parts, against(parts), 1, STORES)
    assert found.reproduced_if_false.share <= MOST + SLACK
    assert found.contradicted_if_true.share <= MOST + SLACK
    assert found.decided_if_placebo.share <= MOST + SLACK


@pytest.mark.parametrize("name", PARTS)
def test_a_rule_says_what_is_so_where_it_is_plain(name: str) -> None:
    """A rule that says nothing errs never: with many seeds it must speak."""
    parts = stored_parts(PARTS[name], 64)
    found = audit(parts, against(parts), 1, 100)
    assert found.power.share > 0.9
    assert found.seeds is not None
