"""A config has the keys of its choices, runs without Hydra, and its plan says what it will be."""

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf, open_dict

from pipegap.sweeps.__main__ import main as sweeps
from pipegap.trainer.__main__ import _require_no_code, main
from pipegap.trainer.base.build import build, is_own, locate, published
from pipegap.trainer.base.documents import NotRead, read
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config import compose as compose_module
from pipegap.trainer.config.compose import Composer, ParsedWords, compose, parse_word
from pipegap.trainer.config.identity import GROUPS, trial_id, yamls
from pipegap.trainer.config.plan import Planner, plan_trial
from pipegap.trainer.delayed import DelayedOptimizer, record
from tests.support import small_sweep
from tests.support.choices import composed, composed_by_hydra, words_of
from tests.support.processes import python

GROUPS_OF_CONFIG = ("model", "data", "optimizer", "pipeline", "correction", "lr_schedule")
CHOICES = [
    (group, path.stem)
    for group in GROUPS_OF_CONFIG
    for path in sorted((CONF / group).glob("*.yaml"))
]


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_a_choice_lists_exactly_the_keywords_of_its_target(group: str, choice: str) -> None:
    node = compose(words_of(group, choice))[group]
    target = locate(node.pop("_target_"))
    parameters = inspect.signature(target).parameters.values()
    assert set(node) == {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from pipegap.trainer.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'hydra', 'pydantic'} & set(sys.modules), 'slow imports'"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "muon" in done.stdout
    assert "batch_size: 16" in done.stdout
    for group in ("scale", "search", "sweep", "tracking"):  # of sweeps
        assert f"\n  {group}=" not in done.stdout


def test_a_resolved_config_runs_without_hydra(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small_sweep.config(tmp_path, "num_updates=2")))
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['hydra', 'ray', 'wandb', 'pandas']))\n"
        "from pipegap.trainer.__main__ import main\n"
        f"sys.exit(main(['--config', '{path}', 'out={tmp_path / 'one'}']))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "one" / "result.json").read_text())["num_updates"] == 2


def test_ways_to_write_a_number_name_the_same_trial(tmp_path: Path) -> None:
    ids = {
        plan_trial(small_sweep.config(tmp_path, f"optimizer.lr={lr}")).trial_id
        for lr in ("0.01", "1e-2", "0.010")
    }
    assert len(ids) == 1
    whole = {plan_trial(small_sweep.config(tmp_path, f"optimizer.lr={lr}")).trial_id for lr in "11"}
    assert whole == {plan_trial(small_sweep.config(tmp_path, "optimizer.lr=1.0")).trial_id}


def test_the_id_leaves_out_what_changes_no_number(tmp_path: Path) -> None:
    config = small_sweep.config(tmp_path)
    same = [{"results": "x"}, {"out": "x"}, {"save_final": True}, {"checkpoint_every": 3}]
    other = [{"seed": 1}, {"device": "cuda"}, {"num_threads": 2}, {"eval_batch_size": 8}]
    assert {trial_id({**config, **change}, "d") for change in same} == {trial_id(config, "d")}
    ids = {trial_id({**config, **change}, "d") for change in other} | {trial_id(config, "e")}
    assert len(ids) == len(other) + 1
    assert trial_id(config, "d") not in ids


def test_tokens_per_parameter_sets_the_number_of_updates(tmp_path: Path) -> None:
    words = ("num_updates=null", "tokens_per_parameter=20")
    config = small_sweep.config(tmp_path, *words)
    plan = plan_trial(config)
    assert plan.num_updates == round(20 * build(config["model"]).num_parameters / (4 * 16))
    assert plan.tokens == plan.num_updates * 4 * 16


def test_a_plan_knows_that_a_correction_has_nothing_to_correct(tmp_path: Path) -> None:
    def idle(*words: str) -> bool:
        return plan_trial(small_sweep.config(tmp_path, *words)).corrects_nothing

    assert idle("correction=taylor")
    assert idle("correction=taylor", "pipeline=pipedream_2bw", "pipeline.synchronous_start=1.0")
    assert not idle()
    assert not idle("correction=taylor", "pipeline=pipedream_2bw")
    assert not idle("correction=ema_nesterov"), "it looks ahead where nothing is late, too"


def test_a_store_that_a_folder_of_ones_own_replaces_may_be_anything(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    words = [f"results={tmp_path / 'loop'}", f"out={tmp_path / 'trial'}"]
    assert small_sweep.config(tmp_path, *words)["out"] == str(tmp_path / "trial")


# Words give exactly the config that Hydra gives, for each of them alone and for many at once.

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
BAD = [["optimizer.lrr=1"], ["num_updates=${nowhere}"]]
BAD += [["optimizer=adamw", "correction.coefficient=1"]]
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


@pytest.fixture(scope="module")
def by_hydra_alone() -> Iterator[None]:
    """As nowhere else in the tests: see `tests/support/choices.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose_module, "_compose", composed_by_hydra)
        yield


@pytest.mark.usefixtures("by_hydra_alone")
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


@pytest.mark.usefixtures("by_hydra_alone")
@pytest.mark.parametrize("overrides", [*GOOD, *GOOD[:5]], ids=" ".join)
def test_a_config_is_the_one_that_hydra_composes(composer: Composer, overrides: list[str]) -> None:
    assert exactly(composer.node(overrides)) == exactly(of_hydra(overrides))
    assert exactly(composer(overrides)) == exactly(compose(overrides))


@pytest.mark.usefixtures("by_hydra_alone")
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


@pytest.mark.usefixtures("by_hydra_alone")
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


@pytest.mark.usefixtures("by_hydra_alone")
def test_seeds_share_all_of_a_plan_but_the_id() -> None:
    planner = Planner()
    for overrides in (["seed=0"], ["seed=1"], ["seed=1", "optimizer.lr=0.5"], ["model=tiny_deep"]):
        config = compose(overrides)
        assert planner(config) == plan_trial(config)


# Odd but right words just work; what is no YAML is said in a line; `dtype=auto` is resolved.

PATHS = [
    *("dätä/wiki", "data/🙂", "👩\u200d🔬/a\u00a0b", "a b/c", "a=b", "a,b", "(a)", "{a"),
    *("a:b", "-", "a#b", "%a", "@a"),
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_needs_quotes_only_where_it_looks_like_something_else(path: str) -> None:
    quoted = f"'{path}'" if path.startswith("{") else path
    assert compose([f"data.path={quoted}"])["data"]["path"] == path


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("1", 1),
        ("1.0", 1.0),
        ("1e-3", 1e-3),
        ("1_000", 1000),
        ("'1'", "1"),
        ('"a: b"', "a: b"),
        ("true", True),
        ("NULL", None),
        ("on", "on"),
        ("007", "007"),
        ("12:30", "12:30"),
        (".inf", float("inf")),
        ("~", None),
        ("2026-01-02", "2026-01-02"),
        ("[1, a, 'b c', {d: 1e3}]", [1, "a", "b c", {"d": 1e3}]),
        ("", ""),
        ("x" * 9_000, "x" * 9_000),
    ],
)
def test_what_a_value_stands_for(given: str, value: object) -> None:
    found = parse_word(f"key={given}").value
    assert (found, type(found)) == (value, type(value))


def test_choices_of_ones_own_are_found_whatever_the_folder_s_name(tmp_path: Path) -> None:
    mine = tmp_path / "it's mine, ä"
    (mine / "optimizer").mkdir(parents=True)
    (mine / "code.py").touch()
    text = "defaults: [adamw]\n_target_: trainer.optimizers.adamw\nlr: 0.5\n"
    (mine / "optimizer" / "big.yaml").write_text(text)
    word = f"code={mine}"
    assert compose([word, "optimizer=big"])["optimizer"]["lr"] == 0.5
    with pytest.raises(BadInput, match=r"^optimizer=bgi: must be one of big, "):
        compose([word, "optimizer=bgi"])


def test_a_yaml_of_ones_own_that_is_damaged_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "code.py").touch()
    for text in ("lr: [", "defaults: [nowhere]", "- a"):
        (tmp_path / "optimizer" / "mine.yaml").write_text(text)
        with pytest.raises(BadInput) as refused:
            compose([f"code={tmp_path}", "optimizer=mine"])
        assert "optimizer=" in str(refused.value)
        assert "\n" not in str(refused.value)


FAST = {"avx512_f": True, "avx512_bf16": True}


@pytest.mark.parametrize(
    ("capabilities", "words", "expected"),
    [
        (FAST, (), "bfloat16"),
        ({"amx_bf16": True}, (), "bfloat16"),
        ({"avx512_f": True, "avx512_bf16": False}, (), "float32"),
        ({}, (), "float32"),
        (None, (), "float32"),  # a torch that cannot tell
        ({}, ("device=cuda",), "bfloat16"),
        (FAST, ("model=tiny_moe",), "float32"),  # experts are slow in bf16 on a CPU
        (FAST, ("model=tiny_moe", "device=cuda"), "bfloat16"),
    ],
)
def test_a_trial_has_the_dtype_that_its_processor_is_fast_in(
    capabilities: dict[str, bool] | None,
    words: tuple[str, ...],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    if capabilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities")
    config = compose(["dtype=auto", *words])
    assert config["dtype"] == expected
    assert trial_id(config, "d") == trial_id(compose([f"dtype={expected}", *words]), "d")


BAD_OF_VALUES = {
    "a tag": ("!!python/object:os.system x", "could not determine a constructor for the tag"),
    "a key twice": ("a: 1\nb: 2\na: 3", "the key a is there twice: remove or rename one in line 3"),
    "a key that is a list": ("? [a]\n: b", "unhashable key in line 1, column 3"),
    "an open bracket": ("[1", "in line 1, column 3"),
}


@pytest.mark.parametrize("name", BAD_OF_VALUES)
def test_what_is_not_read_is_said_in_a_line(name: str) -> None:
    text, says = BAD_OF_VALUES[name]
    with pytest.raises(NotRead) as refused:
        read(text)
    assert says in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 250


def test_an_alias_stands_for_one_value() -> None:
    assert read("[&a 1, *a, {b: *a}]") == [1, 1, {"b": 1}]


# The user's own code may fail: one line says so, and where.

FACTORIES = """\
import sys
def model(*, vocab_size: int = 257, **_): return 5
def data(*, path: str = "", **_): return 5
def optimizer(parameters, *, lr: float = 0.1, weight_decay: float = 0.0): return 5
def correction(num_updates, lags): return 5
def lr_schedule(num_updates): return 5
def pipeline(num_updates, *, num_stages: int = 1, num_microbatches: int = 1): return 5
def raises(num_updates): raise ValueError("two\\nlines")
def exits(num_updates): sys.exit(0)
"""
KINDS = {
    **{"model": "Recipe", "data": "Source", "optimizer": "Optimizer"},
    **{"correction": "NoCorrection", "lr_schedule": "LrFactor", "pipeline": "Schedule"},
}


def refusal(
    folder: Path, source: str, group: str, name: str, capsys: pytest.CaptureFixture[str]
) -> str:
    """The line with which a trial ends that has this choice of the user's own."""
    module = f"own_code_{uuid4().hex}"  # imported by no test before
    (folder / "mine").mkdir()
    (folder / "mine" / f"{module}.py").write_text(source)
    config = small_sweep.config(folder, f"out={folder / 'out'}")
    config |= {
        "code": str(folder / "mine"),
        "choices": None,
        group: {"_target_": f"{module}.{name}"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        assert main(["--config", str(folder / "config.json"), f"code={folder / 'mine'}"]) == 2
    printed = capsys.readouterr()
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert not (folder / "out").exists()
    assert f"{group}._target_={module}.{name}: must " in printed.err
    return printed.err.replace(str(folder / "mine" / f"{module}.py"), "{file}")


def test_a_module_that_cannot_be_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(tmp_path, "import sys\nsys.exit(3)\n", "lr_schedule", "any", capsys)
    assert "must be importable (SystemExit: 3, {file}:2)" in line


@pytest.mark.parametrize("group", KINDS)
def test_a_factory_that_makes_something_else(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(tmp_path, FACTORIES, group, group, capsys)
    assert f"must make a {KINDS[group]} (" in line
    assert "this one lacks " in line


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", r"fails: ValueError: two\nlines, {file}:8"),
        ("exits", "fails: SystemExit: 0, {file}:9"),
    ],
)
def test_a_factory_that_fails(
    name: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refusal(tmp_path, FACTORIES, "lr_schedule", name, capsys)


def test_a_pipeline_without_its_keywords(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(tmp_path, FACTORIES, "pipeline", "lr_schedule", capsys)
    assert "must take the keyword num_stages" in line


def strange(folder: Path, patch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported, and leaves a file `ran` where it is."""
    module = f"own_code_{uuid4().hex}"
    (folder / f"{module}.py").write_text(
        f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n"
        "def flat(num_updates): return lambda update: 1.0\n"
    )
    patch.setattr(sys, "path", [*sys.path, str(folder)])
    return module


def test_a_part_of_pipegap_builds_no_part_of_a_stranger_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_sweep.config(tmp_path) | {"choices": None}
    config["data"] = {
        "_target_": "pipegap.trainer.rehearsal.Excerpt",
        "source": {"_target_": f"{strange(tmp_path, monkeypatch)}.flat"},
        **{"path": None, "rows": 1, "seq_len": 8},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["--config", str(tmp_path / "config.json")]) == 2
    assert capsys.readouterr().err.startswith("pipegap trial: data.source._target_=own_code_")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("named", ["code", "lr_schedule._target_"])
def test_a_config_of_others_imports_nothing_of_its_own(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = strange(tmp_path, monkeypatch)
    config = small_sweep.config(tmp_path) | {"choices": None}
    config["lr_schedule"] = {"_target_": f"{module}.flat"}
    if named == "code":
        config["code"] = str(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["--cfg", "--config", str(tmp_path / "config.json")]

    assert main(words) == 2
    printed = capsys.readouterr()
    assert not (tmp_path / "ran").exists()
    assert printed.err.startswith(f"pipegap trial: {named}=")
    assert "give code=DIR too if you trust it" in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")

    assert main([*words, f"code={tmp_path}"]) == 0
    assert (tmp_path / "ran").exists()
    assert json.loads(capsys.readouterr().out)["code"] == str(tmp_path)


@pytest.mark.parametrize(
    ("group", "node"),
    [
        ("data", {"_target_": "pipegap.trainer.base.children.mapped"}),
        ("optimizer", {"_target_": "trainer.base.children.scratch", "base": "/tmp"}),
        ("lr_schedule", {"_target_": "trainer.optimizers.adamw"}),  # a choice of another group
        ("pipeline", {"_target_": "trainer.schedules.sync", "more": {"_target_": "trainer.x"}}),
    ],
)
def test_a_config_of_others_calls_nothing_of_pipegap_that_is_no_choice(
    group: str, node: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_sweep.config(tmp_path) | {"choices": None, group: node}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["--cfg", "--config", str(tmp_path / "config.json")]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"pipegap trial: {group}.")
    assert "must be that of a choice of pipegap's" in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_every_choice_can_be_run_from_a_config_of_others() -> None:
    for group in GROUPS:
        for path in yamls(group):
            address = str((yaml.safe_load(path.read_text("utf-8")) or {}).get("_target_"))
            for spelt in {address, published(address), f"pipegap.{published(address)}"}:
                if is_own(spelt):
                    _require_no_code({group: {"_target_": spelt}})


def test_a_trial_of_a_loop_of_one_s_own_is_run_by_that_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `rerun` and by `--config`: a line that says which loop."""
    adamw = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters())
    words = {"model": "mine", "data": "ours", "optimizer": "adamw", "seed": 3, "batch_size": 1}
    delayed = DelayedOptimizer(adamw, 1, 0.0)
    with (
        pytest.raises(KeyError),
        record(tmp_path, delayed, {**words, "seq_len": 4, "num_updates": 2}),
    ):
        raise KeyError("a failed trial")
    says = "was recorded by a loop of your own (model=mine, data=ours, optimizer=adamw, "
    assert sweeps(["rerun", f"results={tmp_path}", "status=failed", "dry_run=true"]) == 1
    assert says in capsys.readouterr().err
    [config] = tmp_path.glob("trials/*/config.json")
    assert main(["--config", str(config)]) == 2
    assert says in capsys.readouterr().err
