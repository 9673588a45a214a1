"""How often each claim's rule errs, on simulated stores at the margin of its claim.

At 3 to 16 seeds, each rule calls a claim that is just false reproduced in at most 5 %, and one that
is just true contradicted in at most 5 %.
"""

import pytest

from analysis.claims.audit import audit
from analysis.claims.claim import against
from tests.support.simulated_claims import MOST, PARTS, SLACK, STORES, stored_parts

SEEDS = (3, 5, 8, 16)


@pytest.mark.parametrize("n", SEEDS)
@pytest.mark.parametrize("name", PARTS)
def test_no_claim_is_called_what_it_is_not(name: str, n: int) -> None:
    parts = stored_parts(PARTS[name], n)
    rates = audit(parts, against(parts), 1, STORES)
    assert rates.reproduced_if_false.share <= MOST + SLACK
    assert rates.contradicted_if_true.share <= MOST + SLACK
    assert rates.decided_if_placebo.share <= MOST + SLACK


@pytest.mark.parametrize("name", PARTS)
def test_a_rule_says_what_is_so_where_it_is_plain(name: str) -> None:
    """A rule that says nothing errs never: with many seeds it must speak."""
    parts = stored_parts(PARTS[name], 64)
    rates = audit(parts, against(parts), 1, 100)
    assert rates.power.share > 0.9
    assert rates.seeds is not None
