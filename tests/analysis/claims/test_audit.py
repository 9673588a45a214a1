"""An audit is repeatable, and its numbers are those of a t-test worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from pipegap.analysis.claims.claim import Outcome, Verdict, audited
from pipegap.analysis.claims.rule import Comparison, Row, audit
from tests.support.claim_stores import BY_NAME
from tests.support.simulated_claims import LARGER, ORDER, stored, stored_parts


def order() -> Verdict:
    """Of the claim of the most parts, at 3 seeds; not judged yet."""
    parts = stored_parts(ORDER, 3)
    return Verdict(BY_NAME["order"], Outcome.UNDECIDED, (), comparisons=parts)


def test_an_audit_is_the_same_whenever_it_is_made() -> None:
    assert audited(order()).audit == audited(order()).audit


def test_the_seeds_that_decide_are_those_of_the_noncentral_t() -> None:
    """By hand: differences of mean 0.2 and standard deviation 0.2. The power of a t-test of one
    standard deviation is 0.8 from n = 10 on."""
    by_hand = np.array([-1.0, 0.0, 1.0]) * 0.2 + 0.2
    rows = [Row("less", pd.Series([0.0, 0.0, 0.0])), Row("more", pd.Series(by_hand))]
    made = audit([Comparison("part", rows, LARGER)], 0.95, 1)
    assert made.seeds in (9, 10, 11)
    assert 0.05 < made.decided.share < 0.8, "three seeds are too few"


def test_what_no_number_of_seeds_decides_is_said() -> None:
    rows = [Row("less", pd.Series([0.0, 0.0, 0.0])), Row("more", pd.Series([-1.0, 0.001, 1.0]))]
    assert audit([Comparison("part", rows, LARGER)], 0.95, 1).seeds is None


def test_noise_has_the_paired_spread_of_the_store() -> None:
    store = stored(LARGER, [0.1, 0.3], 5, 0)
    drawn = LARGER.draw(np.zeros(2), store.values, (20_000, 4), np.random.default_rng(0))
    difference = drawn[:, 1] - drawn[:, 0]
    assert difference.std() == pytest.approx(
        (store.values[1] - store.values[0]).std(ddof=1), rel=0.02
    )


def test_a_contradiction_by_one_of_many_parts_decides_a_claim() -> None:
    """Whichever of them it is, and though the search for seeds may leave out what comes later."""
    below = Row("more", pd.Series([-0.3, -0.2, -0.1]))
    undecided, above = pd.Series([-1.0, 0.001, 1.0]), pd.Series([1.0, 1.1, 1.2])
    less = Row("less", pd.Series([0.0, 0.0, 0.0]))
    rows = (Row("more", undecided), Row("more", above), below)
    parts = [Comparison("part", [less, row], LARGER) for row in rows]
    alone = audit([parts[-1]], 0.99, 1)
    made = [audit(several, 0.99, 1) for several in (parts, [*parts[::-1]])]
    assert alone.seeds is not None
    assert all(one.seeds is not None and abs(one.seeds - alone.seeds) <= 1 for one in made)


def test_parts_that_cannot_be_simulated_are_counted() -> None:
    whole = order()
    lost = Comparison(
        "lost", [Row("less", pd.Series([0.1])), Row("more", pd.Series([0.2]))], LARGER
    )
    made = audited(whole._replace(comparisons=[*whole.comparisons, lost])).audit
    assert made is not None
    assert made.num_left_out == 1
    assert audited(whole._replace(comparisons=[lost])).audit is None
