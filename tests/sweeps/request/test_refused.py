"""A wrong word or sweep file: exit code 2, one line that names key and fix, and nothing is started.

One row per kind of refusal; tests/fuzz draws others.
"""

from pathlib import Path

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.commands import COMMANDS
from tests.support.refusals import Refused, name_of

LONG = "x" * 300
WORDS = {
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
    "a key of grid and arm": (
        "delay: [",
        "delay: [optimizer.lr=1, ",
        "optimizer.lr … arms.delay",
    ),
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


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine that tests."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("words", WORDS, ids=name_of)
def test_a_wrong_word_is_refused_in_one_line(words: str, refused: Refused) -> None:
    error = refused(lambda: main(words.split(" ")))
    assert WORDS[words] in error


def test_every_command_is_tried() -> None:
    assert {words.split(" ")[0] for words in WORDS} >= {*COMMANDS} - {"sweep"}


@pytest.mark.parametrize(("old", "new", "said"), FILES.values(), ids=FILES)
def test_a_malformed_sweep_file_is_refused_in_one_line(
    old: str, new: str, said: str, refused: Refused
) -> None:
    assert old in GOOD
    Path("mine.yaml").write_bytes(GOOD.replace(old, new, 1).encode(errors="surrogateescape"))
    error = refused(lambda: main(["sweep=mine.yaml"]))
    assert all(part in error for part in said.split(" … ")), error


def test_the_good_file_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else every malformed one might be refused for another reason."""
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert main([f"sweep={path}", f"results={tmp_path / 'store'}", "dry_run=true"]) == 0
    assert "24 asked, 24 unique, 0 done, 24 to do" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [path]
