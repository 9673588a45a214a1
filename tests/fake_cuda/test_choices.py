"""Every choice on a GPU that is not there: devices fit, nothing raises, the host waits once."""

from typing import Any

import pytest
import yaml

from pipegap.trainer.base.places import CONF
from tests.support import hybrid, moe
from tests.support.fake_cuda.asked import answers, choices, needed, require_sound, small

pytestmark = [pytest.mark.slow, needed]
# Between two renewals: LAPACK's routines report to the host whether they converged.
RENEWED = ("kl_soap", "shampoo", "soap", "soap_muon")
RENEWING = {name: ["optimizer.precondition_every=100"] for name in RENEWED}
STAGES = [
    "batch_size=4",
    "model.num_layers=4",
    "pipeline.num_stages=2",
    "pipeline.num_microbatches=4",
]
MORE = [
    *(["num_replicas=2"], ["clip_scope=stage"], ["clip_norm=null"], ["model.loss_chunk=8"]),
    *(["model.activation_checkpointing=true"], ["dtype=float32", "eval_dtype=float32"]),
]
OF_FAMILIES = [["correction=error_feedback"], ["optimizer=muon"]]
OF_EXPERTS = [
    *(*OF_FAMILIES, ["model.activation_checkpointing=true"]),
    *(["model.balance=bias"], ["model.loss_chunk=8"]),
]
FAMILIES = {
    "moe": ([*moe.WORDS, "model.num_layers=1"], OF_EXPERTS),
    "hybrid": ([*hybrid.WORDS, "model.num_layers=2"], OF_EXPERTS),
}
"""Family beside the dense one of `small` → the words of a small model, and what is tried of it."""
WHOLE = {
    **{f"optimizer={n}": [f"optimizer={n}", *RENEWING.get(n, [])] for n in choices("optimizer")},
    **{f"correction={name}": [f"correction={name}"] for name in choices("correction")},
    **{" ".join(words): words for words in MORE},
    **{
        f"{family} {' '.join(more)}": [*words, *more]
        for family, (words, tried) in FAMILIES.items()
        for more in tried
    },
}
PIPELINES = {f"pipeline={name}": [*STAGES, f"pipeline={name}"] for name in choices("pipeline")}


@pytest.fixture(scope="module")
def looked_at(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What was seen of each trial, by name."""
    trials = {**WHOLE, **PIPELINES}
    questions = [
        {"module": "trials", "words": small(*words), "updates": 2, "whole": name in WHOLE}
        for name, words in trials.items()
    ]
    return dict(zip(trials, answers(request.config, questions), strict=True))


@pytest.mark.parametrize("name", [*WHOLE, *PIPELINES])
def test_a_trial_on_a_gpu(looked_at: dict[str, dict[str, Any]], name: str) -> None:
    require_sound(looked_at[name])


def test_every_family_is_tried() -> None:
    words = [small(), *(words for words, _ in FAMILIES.values())]
    tried = {word.removeprefix("model=") for of in words for word in of if "model=" in word}
    assert {family(name) for name in tried} == {family(name) for name in choices("model")}


def family(model: str) -> str:
    """The class of a model of conf/."""
    recipe: str = yaml.safe_load((CONF / "model" / f"{model}.yaml").read_text())["_target_"]
    return recipe
