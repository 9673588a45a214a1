"""Words give exactly the config that Hydra gives, for each of them alone and for many at once."""

import json
import re
from collections.abc import Iterator

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf, open_dict

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config import compose as compose_module
from pipegap.trainer.config.compose import Composer, compose
from pipegap.trainer.config.names import GROUPS
from pipegap.trainer.config.plan import Planner, plan_trial
from pipegap.trainer.config.words import ParsedWords
from tests.support.composed import composed, composed_by_hydra

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
    ["+optimizer.lr=5"],
    ["++optimizer.lr=5"],
    ["num_updates=9", "optimizer=ademamix"],
    ["optimizer=ademamix", "optimizer.slow_warmup=${batch_size}"],
    ["optimizer='muon'", "save_final=TRUE", "num_updates=1_000"],
    ["optimizer.lr=${lr_schedule.warmup}"],
    ["pipeline=pipedream_2bw", "pipeline.synchronous_start=0.1"],
    ["pipeline=pipedream_2bw", "pipeline.synchronous_start=1"],
    ["optimizer=muon", "pipeline=pipedream", "correction=error_feedback", "correction.lag=delay"],
    ["correction.coefficient=0.5", "correction=error_feedback"],
    ["model=tiny_deep", "pipeline.num_stages=4", "pipeline.num_microbatches=4", "dtype=bfloat16"],
    ["data.path=elsewhere", "lr_schedule=wsd"],
]
BAD = [
    ["optimizer.lrr=1"],
    ["num_updates=${nowhere}"],
    ["optimizer=adamw", "correction.coefficient=1"],
]
SECRET = "sk-0123456789"
RESOLVERS = (
    "${oc.env:PIPEGAP_SECRET}",
    "runs/${oc.env:PIPEGAP_SECRET,none}/a",
    "'${oc.decode:${oc.env:PIPEGAP_SECRET}}'",
    "$\\{oc.env\\:PIPEGAP_SECRET\\}",
    "${now:%Y}",
)


def exactly(config: object) -> str:
    """Tells 1 from 1.0."""
    return json.dumps(config, sort_keys=True)


@pytest.fixture(autouse=True, scope="module")
def by_hydra_alone() -> Iterator[None]:
    """As nowhere else in the tests: see `tests/support/composed.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose_module, "_compose", composed_by_hydra)
        yield


def test_a_choice_changes_nothing_but_its_own_group() -> None:
    """For more, a YAML that Hydra composes needs a package or a list of defaults of its own.

    Tests of other rooms read YAMLs without Hydra, and get what it gives.
    """
    texts = [path.read_text() for group in GROUPS for path in (CONF / group).glob("*.yaml")]
    assert len(texts) > len(GROUPS)
    assert not [text for text in texts if re.search("@package|^defaults:", text, re.MULTILINE)]
    last = {group: max((CONF / group).glob("*.yaml")).stem for group in GROUPS}
    for choices in ({}, last):
        parsed = ParsedWords(None, choices, [])
        assert exactly(composed(parsed)) == exactly(composed_by_hydra(parsed))


@pytest.fixture(scope="module")
def composer() -> Composer:
    """One for all: what a config sets must not be seen in the next one."""
    return Composer()


def of_hydra(words: list[str]) -> object:
    """What Hydra alone makes of the words."""
    plain = [word.replace("+optimizer", "++optimizer").replace("+++", "++") for word in words]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra_compose("config", plain, return_hydra_config=True)
    names = {group: config.hydra.runtime.choices[group] for group in GROUPS}
    with open_dict(config):
        del config["hydra"]
    return {**OmegaConf.to_container(config, resolve=True), "choices": names}


@pytest.mark.parametrize("overrides", [*GOOD, *GOOD[:5]], ids=" ".join)
def test_a_config_is_the_one_that_hydra_composes(composer: Composer, overrides: list[str]) -> None:
    assert exactly(composer.node(overrides)) == exactly(of_hydra(overrides))
    assert exactly(composer(overrides)) == exactly(compose(overrides))


@pytest.mark.parametrize("overrides", BAD, ids=" ".join)
def test_a_refusal_does_not_depend_on_earlier_configs(
    composer: Composer, overrides: list[str]
) -> None:
    """test_words.py has what a refusal says."""
    with pytest.raises(BadInput) as expected:
        compose(overrides)
    with pytest.raises(BadInput) as refused:
        composer(overrides)
    assert str(refused.value) == str(expected.value)


@pytest.mark.parametrize("key", ["resume_from", "+tag"])
@pytest.mark.parametrize("value", RESOLVERS)
def test_an_interpolation_reads_nothing_but_the_config(
    composer: Composer, key: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a secret of the environment would be in the store and in messages."""
    monkeypatch.setenv("PIPEGAP_SECRET", SECRET)
    for word in (f"{key}={value}", f'{key}=[a,"{value}"]', f'{key}={{b: "{value}"}}'):
        if '"' in word and ("'" in value or "\\" in value):
            continue  # not one value within quotes
        with pytest.raises(BadInput, match="may refer to another key alone") as refused:
            composer([word])
        assert str(refused.value).startswith(f"{key.lstrip('+')}=")
        assert SECRET not in str(refused.value)
        assert "\n" not in str(refused.value)


def test_seeds_share_all_of_a_plan_but_the_id() -> None:
    planner = Planner()
    for overrides in (["seed=0"], ["seed=1"], ["seed=1", "optimizer.lr=0.5"], ["model=tiny_deep"]):
        config = compose(overrides)
        assert planner(config) == plan_trial(config)
