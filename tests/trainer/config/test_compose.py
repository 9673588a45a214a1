"""Composing many configs at once gives exactly what Hydra gives for each of them alone."""

from __future__ import annotations

import json

import pytest

from trainer.compose import CONF, Composer, compose
from trainer.errors import BadInput
from trainer.plan import Planner, plan_trial

OPTIMIZERS = sorted(path.stem for path in (CONF / "optimizer").glob("*.yaml"))
GOOD = [
    [],
    ["seed=3", "num_updates=7"],
    ["optimizer.lr=1e-3"],
    ["optimizer.lr=0.001"],
    ["optimizer.lr=1"],
    ["optimizer.lr=2", "optimizer.lr=3"],
    ["num_updates=null", "tokens_per_parameter=20"],
    ["clip_norm=null"],
    ["resume_from='a=b'"],
    ["results=a/b c"],
    ["hydra.job.name=x"],
    ["++optimizer.lr=5"],
    ["num_updates=9", "optimizer=ademamix"],
    ["optimizer=ademamix", "optimizer.slow_warmup=${batch_size}"],
    ["optimizer={lr: 0.5}"],
    ["optimizer.lr=0.5", "optimizer={lr: 0.25}"],
    ["optimizer.lr=${lr_schedule.warmup}"],
    ["pipeline=pipedream_2bw", "pipeline.synchronous_start=0.1"],
    ["pipeline=pipedream_2bw", "pipeline.synchronous_start=1"],
    ["optimizer=muon", "pipeline=pipedream", "correction=error_feedback", "correction.lag=delay"],
    ["correction.coefficient=0.5", "correction=error_feedback"],
    ["model=tiny_deep", "pipeline.num_stages=4", "pipeline.num_microbatches=4", "dtype=bfloat16"],
    ["data.path=elsewhere", "lr_schedule=wsd"],
    *[[f"optimizer={name}", "num_updates=11"] for name in OPTIMIZERS],
]
BAD = [
    ["optimizer.lrr=1"],
    ["lrr=1"],
    ["optimizer=nowhere"],
    ["nowhere=adamw"],
    ["scale=tiny"],
    ["optimizer.lr=fast"],
    ["optimizer.lr=-1"],
    ["optimizer.lr.more=1"],
    ["optimizer.lr=[1,2]"],
    ["optimizer.lr=1,2"],
    ["batch_size=2.5"],
    ["num_updates=${nowhere}"],
    ["num_updates=???"],
    ["~seed"],
    ["+seed=4"],
    ["optimizer=null"],
    ["pipeline=sync", "optimizer=5"],
    ["optimizer@other=muon"],
    ["batch_size"],
    ["="],
    ["optimizer.lr=("],
    ["optimizer=adamw", "correction.coefficient=1"],
    ["correction=error_feedback", "correction.coefficient=-1"],
]


def exactly(config: object) -> str:
    """Tells 1 from 1.0."""
    return json.dumps(config, sort_keys=True)


@pytest.fixture(scope="module")
def composer() -> Composer:
    """One for all: what a config sets must not be seen in the next one."""
    return Composer()


@pytest.mark.parametrize("overrides", [*GOOD, *GOOD[:5]], ids=" ".join)
def test_a_config_is_the_one_that_hydra_composes(composer: Composer, overrides: list[str]) -> None:
    assert exactly(composer(overrides)) == exactly(compose(overrides))


@pytest.mark.parametrize("overrides", BAD, ids=" ".join)
def test_a_refusal_is_the_one_of_hydra_and_the_schema(
    composer: Composer, overrides: list[str]
) -> None:
    with pytest.raises(BadInput) as expected:
        compose(overrides)
    with pytest.raises(BadInput) as found:
        composer(overrides)
    assert str(found.value) == str(expected.value)
    assert "\n" not in str(found.value)


def test_a_choice_that_is_no_name_is_named() -> None:
    with pytest.raises(BadInput, match=r"^optimizer=5: "):
        compose(["pipeline=sync", "optimizer=5"])


def test_seeds_share_all_of_a_plan_but_the_id() -> None:
    planner = Planner()
    for overrides in (["seed=0"], ["seed=1"], ["seed=1", "optimizer.lr=0.5"], ["model=tiny_deep"]):
        config = compose(overrides)
        assert planner(config) == plan_trial(config)
