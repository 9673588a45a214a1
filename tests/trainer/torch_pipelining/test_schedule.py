"""`Schedule2BW` on true ranks makes the numbers of the naive equations, to the last bit."""

from itertools import product

import pytest

from tests.support.torch_pipeline import LOOSE, Case, differences, expected, on_ranks

DAILY: dict[int, list[Case]] = {
    2: [
        Case(2, error_feedback=1.0, drains={3: "evaluate", 5: "save"}),
        Case(4, "torch_muon", 1.0, drains={1: "save"}),
        Case(4, "our_muon", slack=True, clip_norm=LOOSE),
    ],
    3: [Case(3, "sgd", 1.0), Case(6, "adamw", 1.0, drains={2: "drain"}, synchronous_start=2)],
}


@pytest.mark.parametrize("num_stages", DAILY)
def test_equals_the_equations(num_stages: int) -> None:
    cases = DAILY[num_stages]
    for case, trained in zip(cases, on_ranks(num_stages, cases), strict=True):
        assert not differences(trained, expected(case, num_stages)), case


@pytest.mark.slow
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_equals_the_equations_for_every_number_of_microbatches(num_stages: int) -> None:
    optimizers = ["sgd", "adamw", "torch_muon", "our_muon"]
    cases = [
        Case(m, name, feedback)
        for m, name, feedback in product((num_stages, 2 * num_stages), optimizers, (0.0, 1.0))
    ]
    for case, trained in zip(cases, on_ranks(num_stages, cases), strict=True):
        assert not differences(trained, expected(case, num_stages)), case
