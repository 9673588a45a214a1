"""An update on a GPU that is not there: its peak of memory is as recorded and as the plan says, and
it takes no more kernels than were recorded."""

from typing import Any

import pytest

from tests.support.fake_cuda.asked import answers, needed, require_planned
from tests.support.fake_cuda.parts import LAUNCHES, PEAKS, REST, few_tokens, in_two

pytestmark = [pytest.mark.slow, needed]


@pytest.fixture(scope="module")
def looked_at(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What was seen of two updates at each scale, and planned; and of few tokens."""
    trials = {
        **{scale: in_two(scale) for scale in PEAKS},
        **{f"few {scale}": [*few_tokens(scale), "compile=false"] for scale in LAUNCHES},
    }
    questions = [
        {"module": "trials", "words": words, "updates": 2, "whole": False}
        for words in trials.values()
    ]
    return dict(zip(trials, answers(request.config, questions), strict=True))


@pytest.mark.parametrize("scale", PEAKS)
def test_the_peak_is_as_recorded_and_as_planned(
    looked_at: dict[str, dict[str, Any]], scale: str
) -> None:
    facts = looked_at[scale]
    require_planned(facts, rel=0.05)
    assert max(facts["peaks"].values()) == pytest.approx(1e9 * PEAKS[scale], rel=0.05)


@pytest.mark.parametrize("scale", LAUNCHES)
def test_kernels_of_each_part_are_at_most_those_recorded(
    looked_at: dict[str, dict[str, Any]], scale: str
) -> None:
    facts = looked_at[f"few {scale}"]
    assert facts["error"] is None, facts["error"]
    counted = {part or REST: number for part, number in facts["by_part"]["update 1"].items()}
    assert counted.keys() <= LAUNCHES[scale].keys()
    assert all(number <= LAUNCHES[scale][part] for part, number in counted.items()), counted
