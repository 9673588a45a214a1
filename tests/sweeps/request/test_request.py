"""What a command line asks for: several sweeps, a file of one's own, a scale and its words."""

import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from pipegap import sweeps
from pipegap.analysis.table.rows import arm_columns
from pipegap.sweeps.__main__ import main
from pipegap.sweeps.commands import COMMANDS
from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import points
from pipegap.sweeps.request.schema import Sweep, check_sweep, known
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CODE_ROOT, CONF
from pipegap.trainer.config.compose import Composer
from tests.support.choices import OPTIMIZERS
from tests.support.processes import Refused, name_of
from tests.support.small_sweep import ARMS, asked, content, expand, only


def test_a_trial_of_several_sweeps_has_the_tags_of_all(tmp_path: Path) -> None:
    request = parse_request(["sweep=main,horizon", "seeds=[0]", f"results={tmp_path}"])
    trials = all_planned(plan_sweeps(request))
    by_sweeps = {trial.sweeps for trial in trials}
    assert by_sweeps == {
        ("main-few_updates",),
        ("horizon-few_updates",),
        ("main-few_updates", "horizon-few_updates"),
    }
    shared = {trial.name: trial for trial in trials if len(trial.sweeps) == 2}
    assert shared["muon delay seed 0"].config["num_updates"] == 400
    names = {trial.name for trial in trials if trial.sweeps == ("horizon-few_updates",)}
    assert "adamw num_updates=100 delay_ef seed 0" in names
    assert (request.label, request.title) == (
        "main-few_updates_horizon-few_updates",
        "main-few_updates, horizon-few_updates",
    )


def test_of_several_sweeps_an_error_names_the_one_that_it_is_about() -> None:
    with pytest.raises(BadInput) as one:
        parse_request(["sweep=dtype", "dtype=bfloat16"])
    with pytest.raises(BadInput) as several:
        parse_request(["sweep=main,dtype", "dtype=bfloat16"])
    assert str(several.value) == f"{one.value} (sweep dtype-few_updates)"


def test_a_sweep_of_ones_own_needs_no_verdict_and_its_name_may_be_anything(tmp_path: Path) -> None:
    other = tmp_path / "mine & yours.yaml"
    other.write_text("grid: {optimizer: [sgd]}\narms: {sync: [pipeline=sync]}\nseeds: [0]\n")
    request = parse_request([f"sweep={other}"])
    assert [*request.sweeps] == ["mine-yours-few_updates"]
    assert request.sweeps["mine-yours-few_updates"].verdict is None


def test_the_overrides_of_a_scale_come_after_those_of_conf_and_before_the_command_lines() -> None:
    tiny = only("sweep=optimizers", "num_updates=7").base
    assert [word for word in tiny if word.startswith("num_updates")] == [
        f"num_updates={number}" for number in (400, 250, 7)
    ]
    large = only("sweep=optimizers", "scale=135m").base
    assert "num_updates=250" not in large
    with pytest.raises(BadInput, match="nowhere"):
        check_sweep(content(scales={"nowhere": []}))


def test_a_scale_adds_words_to_the_papers_sweeps_which_the_command_line_changes() -> None:
    def of(*words: str) -> Sweep:
        return parse_request(["scale=few_updates", *words]).sweeps["momentum-few_updates"]

    alone, figures, changed = (
        of("sweep=momentum").base,
        of("sweep=paper").base,
        of("sweep=paper", "dtype=float32").base,
    )
    words = ["dtype=auto", "eval_tokens=8192", "compile=update"]
    assert figures == [*words, *alone]
    assert changed == [*figures, "dtype=float32"]


def test_a_scale_changes_what_a_command_line_can_which_wins(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "grid: {size: [{model.hidden_size: 48}], optimizer.lr: [1, 2]}\n"
        "scales: {few_updates: "
        "['seeds=[7]', 'grid.size=[{batch_size: 8}]', 'tune.clip_norm=[1, 2]']}\n"
        "arms: {sync: [pipeline=sync]}\nseeds: [0]\nverdict: none\n"
    )
    tiny = only(f"sweep={path}", "grid.optimizer.lr=[3]")
    assert tiny.grid == {"size": [{"batch_size": 8}], "optimizer.lr": [3]}
    assert (tiny.seeds, tiny.tune) == ([7], {"clip_norm": [1, 2]})
    assert only(f"sweep={path}", "tune=null").tune == {}
    micro = only(f"sweep={path}", "scale=micro")
    assert micro.grid == {"size": [{"model.hidden_size": 48}], "optimizer.lr": [1, 2]}
    assert (micro.seeds, micro.tune) == ([0], {})
    assert only(f"sweep={path}", "seeds=[1,2]").seeds == [1, 2]


# Arms differ in staleness only and are called alike everywhere; a sweep's keys stay its own.

SYNC, DELAY = ["pipeline=sync"], ["pipeline=pipedream_2bw"]


@pytest.mark.parametrize(
    ("delay", "named"),
    [
        ([*SYNC, "pipeline.num_microbatches=2"], "sync again"),
        ([*DELAY, "++seq_len=64"], "seq_len=64"),
        ([*DELAY, "optimizer.lr=0.5"], "optimizer="),
        ([*SYNC, "num_updates=200", "optimizer.lr=0.5"], "optimizer="),
    ],
)
def test_arms_differ_in_staleness_only(delay: list[str], named: str, tmp_path: Path) -> None:
    arms = {"sync": SYNC, "delay": delay}
    sweep = check_sweep({"base": [], "grid": {}, "arms": arms, "seeds": [0], "verdict": "none"})
    with pytest.raises(BadInput) as raised:
        points(sweep, tmp_path)
    assert named in str(raised.value)
    assert "sweep.arms" in str(raised.value)


def test_a_command_line_gives_an_arm_its_own_length_or_leaves_it_out(tmp_path: Path) -> None:
    longer = "arms.delay_ef=[pipeline=pipedream_2bw,correction=error_feedback,num_updates=550]"
    swept = only("sweep=main", "arms.delay=null", longer, "grid.optimizer=[sgd]", "seeds=[3]")
    [point] = points(swept, tmp_path)
    lengths = {trial.arm: trial.plan.num_updates for trial in point.trials(swept.seeds)}
    assert lengths == {"sync": 400, "delay_ef": 550}
    with pytest.raises(BadInput, match="must have an arm sync to compare with"):
        only("sweep=main", "arms.sync=null")
    with pytest.raises(BadInput, match=r"sweep\.arms"):
        only("sweep=main", "arms.delay=late")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_arm_of_another_length_has_the_options_that_follow_the_length(
    optimizer: str, tmp_path: Path
) -> None:
    arms = {"sync": SYNC, "delay": DELAY, "sync_half": [*SYNC, "num_updates=200"]}
    content = {"base": [f"optimizer={optimizer}"], "grid": {}, "seeds": [0], "verdict": "none"}
    [point] = points(check_sweep({**content, "arms": arms}), tmp_path)
    follow = yaml.safe_load((CONF / "optimizer" / f"{optimizer}.yaml").read_text())
    for key, value in follow.items():
        if value == "${num_updates}":
            assert point.configs["sync_half"]["optimizer"][key] == 200
            assert point.configs["sync"]["optimizer"][key] == 400


def test_an_arm_may_be_sync_at_some_point_and_run_otherwise(tmp_path: Path) -> None:
    content = {"base": ["pipeline.num_microbatches=4"], "grid": {"pipeline.num_stages": [1, 2]}}
    arms = {"sync": SYNC, "delay": [*DELAY, "timeout=9.0"]}
    sweep = check_sweep({**content, "arms": arms, "seeds": [0], "verdict": "none"})
    assert len(points(sweep, tmp_path)) == 2


def test_a_second_synchronous_arm_may_look_ahead(tmp_path: Path) -> None:
    arms = {"sync": SYNC, "sync_ema_nesterov": [*SYNC, "correction=ema_nesterov"]}
    sweep = check_sweep({"base": [], "grid": {}, "arms": arms, "seeds": [0], "verdict": "none"})
    assert len(points(sweep, tmp_path)) == 1
    arms["sync_ema_nesterov"] = [*SYNC, "correction=error_feedback"]
    with pytest.raises(BadInput, match="sync again"):
        points(sweep.model_copy(update={"arms": arms}), tmp_path)


@pytest.mark.parametrize("values", ["[1,'1']", "['0.1','1e-1']"])
def test_a_value_that_is_written_twice_is_refused(values: str, refused: Refused) -> None:
    words = ["sweep=main", "grid.optimizer=[adamw]", f"grid.optimizer.lr={values}"]
    assert "must not repeat a value" in refused(lambda: main(words))


@pytest.mark.parametrize("word", ["+seed=1", "~seed=1", "++out=x"])
def test_hydras_prefixes_hide_no_reserved_key(word: str) -> None:
    with pytest.raises(BadInput, match=word.partition("=")[0].strip("+~")):
        parse_request(["sweep=main", word])
    content = {"base": [word], "grid": {}, "arms": {"sync": SYNC}, "seeds": [0], "verdict": "n"}
    with pytest.raises(BadInput, match=word.partition("=")[0].strip("+~")):
        check_sweep(content)


def test_hydras_prefixes_hide_no_key_of_the_grid() -> None:
    with pytest.raises(BadInput, match=r"grid\.optimizer"):
        parse_request(["sweep=main", "++optimizer=lion"])


@pytest.fixture(scope="module")
def composer() -> Composer:
    """One for all sweeps, which share most of what they choose."""
    return Composer()


@pytest.mark.parametrize("name", known("sweep"))
def test_an_arm_has_the_name_that_the_report_gives_it(
    name: str, composer: Composer, tmp_path: Path
) -> None:
    """A synchronous arm of another length than sync is sync to the report, at another point."""
    for point in points(only(f"sweep={name}"), tmp_path, composer):
        names = {arm: arm_columns(config, {})["arm"] for arm, config in point.configs.items()}
        length = point.configs["sync"]["num_updates"]
        assert names == {
            arm: arm if config["num_updates"] == length else "sync"
            for arm, config in point.configs.items()
        }


# A sweep asks for every combination, and for each trial once.


def test_every_combination_is_asked_once(tmp_path: Path) -> None:
    grid = {"optimizer": ["adamw", "muon"], "optimizer.lr": [0.01, 0.02]}
    sweep = check_sweep(content(grid=grid, seeds=[0, 3]))
    trials = expand(sweep, tmp_path)
    assert len(asked(sweep, tmp_path)) == len(trials) == 2 * 2 * 3 * 2
    assert len({trial.plan.trial_id for trial in trials}) == len(trials)
    assert {(t.config["optimizer"]["lr"], t.config["seed"]) for t in trials} == {
        (lr, seed) for lr in (0.01, 0.02) for seed in (0, 3)
    }


def test_a_trial_that_several_points_ask_for_is_one_trial(tmp_path: Path) -> None:
    """λ does not exist for sync and delay: their trials are shared by all λ."""
    twins = {**ARMS, "again": ["pipeline=pipedream_2bw", "correction=none"]}
    sweep = check_sweep(content(arms=twins))
    assert len(asked(sweep, tmp_path)) == 4
    assert len(expand(sweep, tmp_path)) == 3


def test_a_mapping_in_the_grid_moves_keys_together(tmp_path: Path) -> None:
    pairs = [{"optimizer": "muon", "optimizer.lr": 0.5}, {"optimizer": "adamw"}]
    trials = expand(check_sweep(content(grid={"pair": pairs})), tmp_path)
    seen = {(t.config["optimizer"]["_target_"][-4:], t.config["optimizer"]["lr"]) for t in trials}
    assert seen == {("muon", 0.5), ("damw", 0.002)}


def test_arms_of_a_point_differ_in_pipeline_and_correction_only(tmp_path: Path) -> None:
    sync, *others = (t.config for t in expand(check_sweep(content()), tmp_path))
    for other in others:
        arms = {"pipeline", "correction"}
        assert {key for key in sync if sync[key] != other[key]} <= arms | {"choices"}
        assert {
            key for key, value in sync["choices"].items() if value != other["choices"][key]
        } <= arms


def test_a_sweep_of_batch_sizes_holds_the_tokens(tmp_path: Path) -> None:
    trials = expand(check_sweep(content(grid={"batch_size": [8, 16, 32]})), tmp_path)
    assert {trial.plan.tokens for trial in trials} == {400 * 16 * 128}


def test_a_list_of_the_grid_is_replaced_mappings_included(tmp_path: Path) -> None:
    values = "[sgd, {optimizer: muon, optimizer.lr: 0.5}]"
    sweep = only("sweep=optimizers", f"grid.optimizer={values}")
    rates = [point.configs["sync"]["optimizer"]["lr"] for point in points(sweep, tmp_path)]
    assert rates == [0.004, 0.5]


def test_a_study_finds_its_own_code_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trials are those of its table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "data").symlink_to(CODE_ROOT / "data")
    trials = expand(only("sweep=predictors", "scale=tiny"), tmp_path)
    table = pd.read_csv(CODE_ROOT / "findings" / "predictors" / "trials_tiny.csv")
    assert {trial.plan.trial_id for trial in trials} == {*table["trial_id"]}


def test_the_public_names_plan_a_sweep(tmp_path: Path) -> None:
    assert all(getattr(sweeps, name) for name in sweeps.__all__)
    words = ["sweep=main", "scale=micro", "seeds=[0]", "advice=null", f"results={tmp_path}"]
    [plan] = sweeps.plan_sweeps(sweeps.parse_request(words))
    assert len({trial.plan.trial_id for trial in plan.planned}) == 2 * 3


# A wrong word or sweep file: exit code 2, one line that names key and fix, and nothing is
# started.
#
# One row per kind of refusal; tests/fuzz draws others.

LONG = "x" * 300
WORDS = {
    "enter": "must be named: pipegap enter entries/NAME",
    "verify nowhere": "must be the folder of an entry",
    "sweep=mian": "sweep=mian: must be one of main, ",
    "sweep=nowhere/mine.yaml": "sweep=nowhere/mine.yaml: must be a YAML file that can be read",
    "sweep=main,main": "sweep=main,main: must name main-few_updates once",
    "sweep=main seed=3": "seed=3: is set by the sweep's seeds",
    "sweep=main prefer=[compile=update]": "prefer=[compile=update]: was dropped in 0.3.0",
    "sweep=main scale=tyni": "scale=tyni: must be one of tiny, ",
    "sweep=main results=http://a": "results=http://a: must be a folder, or begin with s3://",
    f"sweep=main results={LONG}": "must be a path of at most",
    "sweep=main dry_run=yes": "dry_run=yes: must be false or true",
    "sweep=main gpus_per_trial=nan": "gpus_per_trial=nan: must be a number above 0",
    "sweep=main hourly=-1": "hourly=-1: must be a number from 0",
    "sweep=main gpus=-1": "gpus=-1: must be a whole number from 0",
    "sweep=main tracking=wandb tracking.wait=inf": "tracking.wait=inf: must be seconds",
    "sweep=main tracking.project=x": "tracking.project=x: must be a known key",
    "sweep=main seeds=[": "seeds=[: must be YAML",
    "sweep=main tune.optimizer.lr=[1,nan]": "sweep.tune.optimizer.lr.1=nan: must be a number",
    "sweep=main search.budget=3": "search.budget=3: changes a search: ask for one by search=optuna",
    "sweep=main search=optuna search.budgt=3": "sweep.search.budgt=3: must be a known key (known: ",
    "sweep=main search=optuna search.space.clip_nrom=[1,2]": "search.space.clip_nrom=null leaves",
    "sweep=main optimizer.lrr=1": "optimizer.lrr=1: must be a key of the config",
    "sweep=main optimizer.lr=[1,2]": "a valid number; for several values say grid.optimizer.lr=[…]",
    "sweep=main grid.lr=[1]": "lr=1: must be a key of the config (the closest are optimizer.lr, ",
    "sweep=main batch_size": "batch_size=: must be key=value",
    "sweep=main --dry": "--dry=: is not an option of this command",
    "list status=lost": "results=results: must be a folder that holds trials",
    "rerun results=nowhere": "rerun=: must say which trials",
    "evaluate": "tasks=: must name tasks, each once: [mmlu,",
    "prune": "checkpoints=: must be finished or failed or all",
    "status sweep=main watch=1": "watch=1: must be false or true",
    "dashboard mode=on project=a": "tracking.mode=on: must be",
    "jobs adress=x": "adress=x: is not a key of this command",
    "stop": "stop=: must name jobs",
    "submit sweep=main results=a": "results=a: must be given as an absolute path",
    f"{LONG}": f"{LONG[:100]}…{LONG[:100]}=: must be key=value",
    "advice": "advice=: must be key=value",
}
"""Words → what the one line has."""

GRID = """\
  optimizer: [adamw, muon]
  optimizer.lr: [0.01, 0.02]
"""
GOOD = f"""\
base: [batch_size=4, seq_len=16, num_updates=12]
scales: {{few_updates: [eval_every=6]}}
grid:
{GRID}\
arms:
  sync: [pipeline=sync]
  delay: [pipeline=pipedream_2bw]
  delay_ef: [pipeline=pipedream_2bw, correction=error_feedback]
seeds: [0, 1]
early_stop: {{margin: 0.5}}
verdict: none
"""
FILES = {
    "no YAML": ("verdict: none", "verdict: [", "sweep= … must be YAML"),
    "no mapping": (GOOD, "- base\n", "sweep= … keys and values"),
    "a key twice": ("verdict: none", "seeds: [2]\nverdict: none", "seeds is there twice"),
    "an unknown key": ("seeds:", "seed:", "sweep.seed … known: seeds, "),
    "a dropped key": ("seeds:", "prefer: [compile=update]\nseeds:", "sweep.prefer= … 0.3.0"),
    "a missing key": (f"grid:\n{GRID}", "", "sweep.grid=missing … required"),
    "a repeated value": ("[0.01, 0.02]", "[0.01, 0.01]", "optimizer.lr … not repeat"),
    "a key set twice": (
        "optimizer: [adamw, muon]",
        "pair: [{optimizer: sgd, optimizer.lr: 1}]",
        "sweep.grid.pair=optimizer.lr … one place",
    ),
    "a key of grid and arm": ("delay: [", "delay: [optimizer.lr=1, ", "optimizer.lr … arms.delay"),
    "no sync": ("  sync: [pipeline=sync]\n  delay", "  delay", "sweep.arms … sync"),
    "equal arms": (", correction=error_feedback]", "]", "sweep.arms … delay_ef … must differ"),
    "no override": ("pipeline=sync", "pipeline", "sweep.arms.sync.0 … key=value"),
    "too many trials": ("[0, 1]", f"{[*range(900)]}", "4 points, 3 arms, 900 seeds … 10,000"),
    "an unknown scale": ("{few_updates:", "{huge:", "sweep.scales … huge … among"),
    "a bad word for a scale": (
        "[eval_every=6]",
        "['seeds=[a]']",
        "sweep.scales.few_updates=sweep.seeds.0=a … integer",
    ),
}
"""Kind → a text of the good file, what takes its place, parts of the message with … between."""
ADDED = {
    "shared: adamw": "sweep.shared=adamw … sweep.tune",
    "tune: {clip_norm: [1, 2]}\nshared: lion": "sweep.shared=lion … sweep.grid.optimizer",
    "tune: {clip_norm: [2, 1]}": "sweep.tune.clip_norm … ascending",
    "tune: {clip_norm: [0, 1]}": "sweep.tune.clip_norm.0=0 … a number from 1e-06 to 1e+06",
    "tune: {optimizer.lr: [1, 2]}": "sweep.tune=optimizer.lr … axis",
    "tuning: {seed: 9}": "sweep.tuning … needs sweep.tune",
    "tune: {clip_norm: [1, 2]}\ntuning: {seed: 1}": "sweep.tuning.seed=1 … compared on those",
    "tune: {clip_norm: [1, 2]}\ntuning: {seeds: [9]}": "sweep.tuning.seeds … known: seed, inverse",
    "tune: {clip_norm: [1, 2]}\ntuning: {inverse: [clip_norm]}": "inverse=clip_norm … one place",
    "advice: {stages: 4, microbatches: 8, arms: [late]}": "arms=late … among delay, delay_ef",
    "advice: {stages: 4, microbatches: 2, arms: [delay]}": "microbatches=2 … stages - 1 = 3",
}
"""What the good file gets as a further line, and what the message has."""
FILES |= {line: ("verdict:", f"{line}\nverdict:", said) for line, said in ADDED.items()}


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine that tests."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize("words", WORDS, ids=name_of)
def test_a_wrong_word_is_refused_in_one_line(words: str, refused: Refused) -> None:
    error = refused(lambda: main(words.split(" ")))
    assert WORDS[words] in error


@pytest.mark.usefixtures("no_cluster")
def test_every_command_is_tried() -> None:
    assert {words.split(" ")[0] for words in WORDS} >= {*COMMANDS} - {"sweep"}


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(("old", "new", "said"), FILES.values(), ids=FILES)
def test_a_malformed_sweep_file_is_refused_in_one_line(
    old: str, new: str, said: str, refused: Refused
) -> None:
    assert old in GOOD
    Path("mine.yaml").write_bytes(GOOD.replace(old, new, 1).encode(errors="surrogateescape"))
    error = refused(lambda: main(["sweep=mine.yaml"]))
    assert all(part in error for part in said.split(" … ")), error


@pytest.mark.usefixtures("no_cluster")
def test_the_good_file_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else every malformed one might be refused for another reason."""
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert main([f"sweep={path}", f"results={tmp_path / 'store'}", "dry_run=true"]) == 0
    assert "24 asked, 24 unique, 0 done, 24 to do" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [path]
