"""Curves of many points are thinned for the page, and keep their ends."""

from itertools import pairwise

from pipegap.analysis.figures.curves import FEWEST
from pipegap.analysis.report.page.page import MOST_POINTS, OVER_TRAINING, thin


def test_many_points_are_thinned_evenly_and_counted() -> None:
    specs = [{"datasets": {"seeds": [{"x": x} for x in range(20_000)], "means": [{"x": 0}]}}]
    shown, were = thin(specs)
    assert were == 20_001
    assert MOST_POINTS * 0.99 < shown <= MOST_POINTS + 1
    kept = [row["x"] for row in specs[0]["datasets"]["seeds"]]
    assert (kept[0], kept[-1]) == (0, 19_999)
    steps = {after - before for before, after in pairwise(kept)}
    assert max(steps) - min(steps) <= 1
    few = [{"datasets": {"seeds": [{"x": 1}] * 10}}]
    assert thin(few) == (10, 10)


def test_a_thinned_curve_has_its_ends_and_points_enough() -> None:
    curves = [{"trial_id": i, OVER_TRAINING: t} for i in range(1000) for t in range(100)]
    specs = [{"datasets": {"seeds": curves}}]
    assert thin(specs) == (1000 * FEWEST, 100_000)
    for trial in (0, 999):
        kept = [r[OVER_TRAINING] for r in specs[0]["datasets"]["seeds"] if r["trial_id"] == trial]
        assert (kept[0], kept[-1], len(kept)) == (0, 99, FEWEST)
