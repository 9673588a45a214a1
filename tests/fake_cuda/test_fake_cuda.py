"""Every choice on a GPU that is not there: devices fit, nothing raises, the host waits once."""

from typing import Any

import pytest
import yaml

from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.optimizers.routing import is_averaging
from tests.support import models
from tests.support.choices import OPTIMIZERS, optimizer_maker
from tests.support.fake_cuda.parts import EF, LAUNCHES, PEAKS, REST, few_tokens, in_two
from tests.support.fake_cuda.questions import (
    answers,
    choices,
    needs_fake_gpu,
    require_planned,
    require_sound,
    small,
)
from tests.support.steps import resolved, words_of_scale

pytestmark = needs_fake_gpu

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
    "moe": ([*models.WORDS, "model.num_layers=1"], OF_EXPERTS),
    "hybrid": ([*models.WORDS_OF_HYBRID, "model.num_layers=2"], OF_EXPERTS),
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
        {"about": "trial", "words": small(*words), "updates": 2, "whole": name in WHOLE}
        for name, words in trials.items()
    ]
    return dict(zip(trials, answers(request.config, questions), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WHOLE, *PIPELINES])
def test_a_trial_on_a_gpu(looked_at: dict[str, dict[str, Any]], name: str) -> None:
    require_sound(looked_at[name])


@pytest.mark.slow
def test_every_family_is_tried() -> None:
    words = [small(), *(words for words, _ in FAMILIES.values())]
    tried = {word.removeprefix("model=") for of in words for word in of if "model=" in word}
    assert {family(name) for name in tried} == {family(name) for name in choices("model")}


def family(model: str) -> str:
    """The class of a model of conf/."""
    recipe: str = yaml.safe_load((CONF / "model" / f"{model}.yaml").read_text())["_target_"]
    return recipe


# A trial on a GPU that is not there; tests/fake_cuda/test_fake_cuda.py has every choice.

EF_OF_DAILY = ("correction=error_feedback", "pipeline.num_stages=2", "model.num_layers=2")
MANY = ("pipeline.num_microbatches=2",)


@pytest.mark.long
def test_what_a_trial_does_on_a_gpu(request: pytest.FixtureRequest) -> None:
    """Updates, an evaluation, a comparison with the fresh update, and a checkpoint; and what a rank
    sends to the one that writes the checkpoint of a gang."""
    words = small(*EF_OF_DAILY, *MANY)
    question = {"about": "trial", "words": words, "updates": 2, "whole": True}
    facts, sent = answers(request.config, [question, {"about": "gang_state"}])
    require_sound(facts)
    assert sent == {"devices": ["cpu"] * 3, "is_shared": True, "others": [3]}, (
        "the recording rank would restore another rank's tensors on its own GPU"
    )


# The memory that a plan counts for each optimizer, and for a comparison with the fresh update, is
# what they take on a GPU that is not there.
#
# At the tokens of a scale's microbatches, in few layers, the peak lies in a microbatch. With few
# tokens it lies in the update: there what an optimizer makes on the way and drops is judged.

FEW_TOKENS = ("batch_size=1", "seq_len=16", "pipeline.num_microbatches=1", "model.loss_chunk=null")
LAYERS = 2
CASES = [(scale, name) for name in OPTIMIZERS for scale in ("135m", "2b")]
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
    if not is_averaging(optimizer_maker(name).func):
        return words
    return [word for word in words if not word.startswith("correction=")]


@pytest.fixture(scope="module")
def looked_at_of_memory(request: pytest.FixtureRequest) -> dict[Any, dict[str, Any]]:
    """What was seen of each trial, and planned."""
    questions = [
        *({"words": words_of(*case), "whole": False} for case in CASES),
        *({"words": [*words, "diagnostics=2"], "whole": True} for words in COMPARED.values()),
    ]
    asked = [{"about": "trial", "updates": 2, **question} for question in questions]
    return dict(zip([*CASES, *COMPARED], answers(request.config, asked), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_peak_is_as_planned(
    looked_at_of_memory: dict[Any, dict[str, Any]], case: tuple[str, str]
) -> None:
    require_planned(looked_at_of_memory[case], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("trial", COMPARED)
def test_a_comparison_takes_what_is_planned_and_a_checkpoint_nothing(
    looked_at_of_memory: dict[Any, dict[str, Any]], trial: str
) -> None:
    facts = looked_at_of_memory[trial]
    assert facts["error"] is None, facts["error"]
    peaks = facts["peaks"]
    assert facts["planned"] == pytest.approx(peaks["comparison"], rel=0.05)
    of_updates = max(peak for part, peak in peaks.items() if part.startswith("update "))
    assert peaks["checkpoint"] <= of_updates, "it is copied to the host part by part"


# An update on a GPU that is not there: its peak of memory is as recorded and as the plan says,
# and it takes no more kernels than were recorded.


@pytest.fixture(scope="module")
def looked_at_of_peaks(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What was seen of two updates at each scale, and planned; and of few tokens."""
    trials = {
        **{scale: in_two(scale) for scale in PEAKS},
        **{f"few {scale}": [*few_tokens(scale), "compile=false"] for scale in LAUNCHES},
    }
    questions = [
        {"about": "trial", "words": words, "updates": 2, "whole": False}
        for words in trials.values()
    ]
    return dict(zip(trials, answers(request.config, questions), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("scale", PEAKS)
def test_the_peak_is_as_recorded_and_as_planned(
    looked_at_of_peaks: dict[str, dict[str, Any]], scale: str
) -> None:
    facts = looked_at_of_peaks[scale]
    require_planned(facts, rel=0.05)
    assert max(facts["peaks"].values()) == pytest.approx(1e9 * PEAKS[scale], rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("scale", LAUNCHES)
def test_kernels_of_each_part_are_at_most_those_recorded(
    looked_at_of_peaks: dict[str, dict[str, Any]], scale: str
) -> None:
    facts = looked_at_of_peaks[f"few {scale}"]
    assert facts["error"] is None, facts["error"]
    counted = {part or REST: number for part, number in facts["by_part"]["update 1"].items()}
    assert counted.keys() <= LAUNCHES[scale].keys()
    assert all(number <= LAUNCHES[scale][part] for part, number in counted.items()), counted


# A rank of a true pipeline on a GPU that is not there: channels, sums over ranks, divided states.
#
# Its peers are torch's fake process group. Messages, streams and NCCL themselves are not proven
# here.

UPDATES = 3
EF_OF_RANKS = "correction=error_feedback"


def of(p: int, *words: str) -> list[str]:
    """The words of a trial of p ranks, with a layer for each stage."""
    shape = (
        f"model.num_layers={2 * p}",
        f"pipeline.num_stages={p}",
        f"pipeline.num_microbatches={p}",
    )
    return small(*shape, f"batch_size={2 * p}", *words)


RANKS = {
    **{
        f"{p} ranks, {rank}": (of(p, EF_OF_RANKS), rank)
        for p, rank in ((2, 0), (2, 1), (4, 2), (8, 7))
    },
    **{
        " ".join(words[:2]): (of(2, *words), rank)
        for rank, words in (
            (1, ["optimizer=muon", EF_OF_RANKS]),
            (0, ["pipeline=zero_bubble_v"]),
            (1, ["pipeline=dualpipe_v", "pipeline.num_microbatches=4"]),
            (0, ["pipeline=pipedream"]),
            (1, ["pipeline=pipedream", "clip_scope=stage"]),
            (0, ["num_replicas=2", EF_OF_RANKS]),
            (1, [*models.WORDS, "model.num_layers=2"]),
            (0, [*models.WORDS_OF_HYBRID, "model.num_layers=2"]),
        )
    },
}


# The chunks of the linear mixers cost time here, and no memory that a checkpoint has.
FEW = ("batch_size=8", "pipeline.num_microbatches=8", "compile=false", "model.chunk_size=2048")
LARGEST = words_of_scale("10b", "pipeline=pipedream_2bw", EF_OF_RANKS, *FEW)


@pytest.fixture(scope="module")
def looked_at_of_ranks(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What was seen of each rank, by name."""
    questions = [
        {"about": "rank", "words": words, "rank": rank, "updates": UPDATES}
        for words, rank in RANKS.values()
    ]
    largest = {"about": "rank", "words": LARGEST, "rank": 0, "updates": 1, "saves": True}
    seen = answers(request.config, [*questions, largest])
    return dict(zip([*RANKS, "10b"], seen, strict=True))


@pytest.mark.slow
def test_rank_0_of_the_largest_scale_at_a_checkpoint(
    looked_at_of_ranks: dict[str, dict[str, Any]],
) -> None:
    """A GPU of 80 GB holds rank 0 of 10b on eight ranks, AdamW with a delay and Error Feedback,
    while the gang is saved: nothing of another rank is there, and of its own nothing twice."""
    facts = looked_at_of_ranks["10b"]
    assert facts["error"] is None, facts["error"]
    assert 20e9 < facts["peaks"]["checkpoint"] < 60e9
    assert plan_trial(resolved([*LARGEST, "device=cpu"])).memory_bytes < 60e9, "the largest rank"


@pytest.mark.slow
@pytest.mark.parametrize("name", RANKS)
def test_a_rank_on_a_gpu(looked_at_of_ranks: dict[str, dict[str, Any]], name: str) -> None:
    """The host waits once per update, in the thread of the sums, and at the drain for the clock's
    events; nothing is copied to the host. With a clip by stage it waits in that thread for what the
    stage has, and for what all have some updates later."""
    facts = looked_at_of_ranks[name]
    assert facts["error"] is None, facts["error"]
    assert not facts["mixed"]
    assert not facts["refused"]
    waits = {
        why: n for why, n in facts["waits"]["updates"].items() if "tracing/clock.py" not in why
    }
    expected = {"tolist": UPDATES} | ({"item": UPDATES} if "clip_scope=stage" in name else {})
    assert {why.partition(" at ")[0]: n for why, n in waits.items()} == expected
