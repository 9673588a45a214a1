"""The memory that a plan counts for each optimizer, and for a comparison with the fresh update, is
what they take on a GPU that is not there.

At the tokens of a scale's microbatches, in few layers, the peak lies in a microbatch. With few
tokens it lies in the update: there what an optimizer makes on the way and drops is judged.
"""

from typing import Any

import pytest

from pipegap.trainer.optimizers.routing import is_averaging
from tests.support.every_optimizer import NAMES, maker
from tests.support.fake_cuda.asked import answers, needed, require_planned
from tests.support.fake_cuda.parts import EF, in_two
from tests.support.steps import words_of_scale

pytestmark = [pytest.mark.slow, needed]
FEW_TOKENS = ("batch_size=1", "seq_len=16", "pipeline.num_microbatches=1", "model.loss_chunk=null")
LAYERS = 2
CASES = [(scale, name) for name in NAMES for scale in ("135m", "2b")]
COMPARED = {
    "adamw at 135m": in_two("135m", "model.num_layers=3"),
    "muon at 135m": in_two("135m", "model.num_layers=3", "optimizer=muon"),
    "adamw at 2b": words_of_scale("2b", *FEW_TOKENS, *EF, f"model.num_layers={LAYERS}"),
    "muon at 2b": words_of_scale(
        "2b", *FEW_TOKENS, *EF, "optimizer=muon", f"model.num_layers={LAYERS}"
    ),
}
"""Trials that compare an update with its fresh one."""


def words_of(scale: str, name: str) -> list[str]:
    """Error Feedback with each optimizer that takes it."""
    optimizer = f"optimizer={name}"
    words = {
        "135m": in_two(scale, optimizer, "model.num_layers=3"),
        "2b": words_of_scale(scale, optimizer, *FEW_TOKENS, *EF, f"model.num_layers={LAYERS}"),
    }[scale]
    if not is_averaging(maker(name).func):
        return words
    return [word for word in words if not word.startswith("correction=")]


@pytest.fixture(scope="module")
def looked_at(request: pytest.FixtureRequest) -> dict[Any, dict[str, Any]]:
    """What was seen of each trial, and planned."""
    questions = [
        *({"words": words_of(*case), "whole": False} for case in CASES),
        *({"words": [*words, "diagnostics=2"], "whole": True} for words in COMPARED.values()),
    ]
    asked = [{"module": "trials", "updates": 2, **question} for question in questions]
    return dict(zip([*CASES, *COMPARED], answers(request.config, asked), strict=True))


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_peak_is_as_planned(
    looked_at: dict[Any, dict[str, Any]], case: tuple[str, str]
) -> None:
    require_planned(looked_at[case], rel=0.1)


@pytest.mark.parametrize("trial", COMPARED)
def test_a_comparison_takes_what_is_planned_and_a_checkpoint_nothing(
    looked_at: dict[Any, dict[str, Any]], trial: str
) -> None:
    facts = looked_at[trial]
    assert facts["error"] is None, facts["error"]
    peaks = facts["peaks"]
    assert facts["planned"] == pytest.approx(peaks["comparison"], rel=0.05)
    of_updates = max(peak for part, peak in peaks.items() if part.startswith("update "))
    assert peaks["checkpoint"] <= of_updates, "it is copied to the host part by part"
