"""A wrong word of any command of `pipegap sweep` is refused in one line, and nothing starts."""

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.commands import COMMANDS
from pipegap.sweeps.request.command_line import parse_request
from tests.support.refusals import Refused, name_of

LONG = "x" * 300

# words → what the one line has
BAD = {
    "sweep=mian": "sweep=mian: must be one of main, ",
    "sweep=": "sweep=: must be one of ",
    "sweep=nowhere/mine.yaml": "sweep=nowhere/mine.yaml: must be a YAML file that can be read",
    "sweep=/": "sweep=/: must be one of ",
    "sweep=main,": "sweep=: must be one of ",
    "sweep=main,main": "sweep=main,main: must name main-few_updates once",
    "sweep=main,nowhere": "sweep=nowhere: must be one of ",
    "sweep=main seed=3": "seed=3: is set by the sweep's seeds",
    "sweep=main out=here": "out=here: would be the folder of every trial",
    "sweep=main grid.seed=[1]": "seed=1: is set by the sweep's seeds",
    "sweep=main scale=tyni": "scale=tyni: must be one of tiny, ",
    "sweep=main scale=": "scale=: must be one of ",
    "sweep=/dev/zero.yaml": "sweep=/dev/zero.yaml: must be a YAML file that can be read",
    f"sweep={LONG}.yaml": "must be a YAML file that can be read",
    "sweep=main results=": "results=: must be a path, not empty",
    f"sweep=main results={LONG}": "must be a path of at most",
    "sweep=main results=http://a": "results=http://a: must be a folder, or begin with s3://",
    "sweep=main results=s3:///a": "results=s3:///a: must be s3://BUCKET/PREFIX",
    "sweep=main dry_run=yes": "dry_run=yes: must be false or true",
    "sweep=main gpus_per_trial=0": "gpus_per_trial=0: must be a number above 0",
    "sweep=main gpus_per_trial=nan": "gpus_per_trial=nan: must be a number above 0",
    "sweep=main gpus_per_trial=１": "gpus_per_trial=１: must be a number above 0",
    "sweep=main tracking=wand": "tracking=wand: must be one of wandb, ",
    "sweep=main tracking=wandb tracking.wait=inf": "tracking.wait=inf: must be seconds",
    "sweep=main tracking=wandb tracking.wiat=1": "tracking.wiat=1: must be a known key",
    "sweep=main tracking=wandb tracking.project=[": "tracking.project=[: must be one value",
    "sweep=main seeds=[true]": "sweep.seeds.0=True: must be a valid integer",
    "sweep=main seeds=[１]": "sweep.seeds.0=１: must be a valid integer",
    f"sweep=main seeds={[*range(200_000)]}".replace(", ", ","): "must have at most 10,000 char",
    f"sweep=main seeds={'[' * 3_000}": "maximum recursion depth exceeded",
    "sweep=main tune.optimizer.lr=[1,nan]": "sweep.tune.optimizer.lr.1=nan: must be a number",
    "sweep=main tune.optimizer.lr=[1e-300,1]": "sweep.tune.optimizer.lr.0=1e-300: must be",
    "sweep=main search=optun": "search=optun: must be one of optuna, or path/to/a.yaml",
    "sweep=main search.budget=3": "search.budget=3: changes a search: ask for one by search=optuna",
    "sweep=main search=optuna search.budgt=3": "sweep.search.budgt=3: must be a known key (known: ",
    "sweep=main search=optuna search.seeds=[0]": "sweep.search.seeds=0: must not be a seed of the",
    "sweep=main search=optuna search.space=3": "sweep.search.space=3: must be a valid dictionary",
    "sweep=main search=optuna search.space.batch_size=[4": "batch_size=[4: must be YAML",
    "sweep=main search=optuna search.space.clip_nrom=[1,2]": "search.space.clip_nrom=null leaves",
    "sweep=main grid.=[1]": "grid.=[1]: must be a key of the config",
    "sweep=main optimizer.lrr=1": "optimizer.lrr=1: must be a key of the config",
    "sweep=main +optimizer.lrr=1": "optimizer.lrr=1: must be a known key",
    "sweep=main hydra.run.dir=x": "hydra.run.dir=x: has no effect",
    "sweep=main num_updates=1e12": "num_updates=1000000000000.0: must be a valid integer",
    "sweep=main batch_size": "batch_size=: must be key=value",
    "sweep=main --dry": "--dry=: is not an option of this command",
    "sweep=main optimizer=sgd": "optimizer=sgd: is set by the sweep's grid",
    "sweep=main correction.coefficient=-2": "coefficient=-2",
    "sweep=main grid.nonsense=[1]": "nonsense",
    "sweep=main seeds=[": "seeds=[: must be YAML",
    "sweep=main tune.optimizer.nowhere=[1,2]": "optimizer.nowhere",
    "sweep=main tune.optimizer.momentum=[1,2]": "optimizer.momentum",
    "sweep=main tracking.project=x": "tracking.project=x: must be a known key",
    "sweep=main tracking=wandb tracking.mode=shared": "tracking.mode=shared: must be",
    "sweep=main tracking=wandb tracking.project=": "tracking.project=: must",
    "sweep=main tracking=wandb tracking.tags=one": "tracking.tags=one: ",
    "sweep=main tracking=wandb tracking.init_timeout=0": "tracking.init_timeout=0: must",
    "sweep=main tracking=wandb tracking.wait=-1": "tracking.wait=-1: must be seconds",
    "sweep=main data.path=a\0": r"data.path=a\x00: must be text without control",
    "list status=lost": "results=results: must be a folder that holds trials",
    "list format=xml": "format=xml: must be text or csv or json",
    "list seed=": "seed=: must have a value",
    "list seed": "seed=: must be key=value",
    f"list results={LONG}": "must be a path of at most",
    "list -x": "-x=: is not an option",
    "rerun results=nowhere": "rerun=: must say which trials",
    "rerun force=1 status=failed": "force=1: must be false or true",
    "rerun status=failed gpus_per_trial=2": "gpus_per_trial=2: must be a number",
    "evaluate": "tasks=: must name tasks, each once: [mmlu,",
    "evaluate sweep=main scale=micro tasks=[copa,copa]": "tasks=[copa,copa]: must name tasks",
    "evaluate tasks=copa max_length=x": "max_length=x: must be a whole number from 1 to",
    "evaluate sweep=main scale=micro tasks=copa benchmark=hub": "benchmark=hub",
    "evaluate sweep=main scale=micro tasks=[copa]": "must have trials that kept their final",
    "prune": "checkpoints=: must be finished or failed or all",
    "prune checkpoints=some": "checkpoints=some: must be finished or failed or all",
    "status sweep=mian": "sweep=mian: must be one of main",
    "status sweep=main watch=1": "watch=1: must be false or true",
    "dashboard mode=on project=a": "tracking.mode=on: must be",
    "jobs adress=x": "adress=x: is not a key of this command",
    "stop": "stop=: must name jobs",
    "stop a b=c": "b=c: is not a key of this command",
    "submit sweep=main dry_run=true": "dry_run=true: must be false",
    "submit sweep=main follow=1": "follow=1: must be true or false",
    "submit sweep=main results=a": "results=a: must be given as an absolute path",
    f"{LONG}": f"{LONG[:100]}…{LONG[:100]}=: must be key=value, or a command first",
    "\0": r"\x00=: must be key=value, or a command first",
    "advice": f"advice=: must be key=value, or a command first: {', '.join(COMMANDS)}",
}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine that tests."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("words", BAD, ids=name_of)
def test_a_wrong_word_is_refused_in_one_line(words: str, refused: Refused) -> None:
    error = refused(lambda: main(words.split(" ")))
    assert BAD[words] in error


def test_every_command_is_tried() -> None:
    assert {words.split(" ")[0] for words in BAD} >= {*COMMANDS} - {"run"}


def test_a_path_of_a_sweep_needs_no_quotes() -> None:
    request = parse_request(["sweep=main", "data.path=dätä/🙂"])
    assert "data.path=dätä/🙂" in next(iter(request.sweeps.values())).base
