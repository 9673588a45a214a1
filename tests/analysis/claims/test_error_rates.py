"""How often each claim's rule decides where there is nothing to decide: in at most 5 % of simulated
stores without an effect, at 3 to 16 seeds."""

import pytest

from pipegap.analysis.claims.claim import against
from pipegap.analysis.claims.rule import audit
from tests.support.simulated_claims import MOST, PARTS, SLACK, STORES, stored_parts

SEEDS = (3, 5, 8, 16)


@pytest.mark.parametrize("n", SEEDS)
@pytest.mark.parametrize("name", PARTS)
def test_nothing_is_decided_without_an_effect(name: str, n: int) -> None:
    parts = stored_parts(PARTS[name], n)
    rates = audit(parts, against(parts), 1, STORES)
    assert rates.decided_if_placebo.share <= MOST + SLACK


@pytest.mark.parametrize("name", PARTS)
def test_a_rule_says_what_is_so_where_it_is_plain(name: str) -> None:
    """A rule that says nothing errs never: with many seeds it must speak."""
    parts = stored_parts(PARTS[name], 64)
    rates = audit(parts, against(parts), 1, 100)
    assert rates.decided.share > 0.9
    assert rates.seeds is not None
