"""A part of one's own may lack every key that ours have: it trains, and all that read it go on."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipegap.analysis import gaps
from pipegap.analysis.__main__ import main as analysis
from pipegap.analysis.table.load import load
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.cluster.package import require_shared
from pipegap.sweeps.plan.pace import _kind as pace_kind
from pipegap.sweeps.request.command_line import parse_request
from pipegap.trainer.__main__ import main as trainer
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import Composer
from tests.support import small
from tests.support.own_code import as_in_a_new_process
from tests.support.reports import with_figures

SOURCE = """
from pipegap.trainer.base.ranges import Few
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.data.shards import Prepared
from pipegap.trainer.models.llama import Llama
from pipegap.trainer.schedules.recipes import pipedream_2bw
import torch

class Text:
    def __init__(self):
        self._prepared = Prepared(path={corpus!r})
    hash = property(lambda self: self._prepared.hash)
    num_validation_tokens = property(lambda self: self._prepared.num_validation_tokens)
    def open(self):
        return self._prepared.open()

def model():
    return Llama(vocab_size=257, hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1,
        intermediate_size=16, rope_theta=1e4, rms_norm_eps=1e-5, initializer_range=0.1,
        tied_embeddings=True, activation_checkpointing=False)

def optimizer(parameters):
    return torch.optim.SGD([weight for _, weight in parameters], lr=0.1)

def pipeline(num_updates, *, num_stages: Few, num_microbatches: Few):
    return pipedream_2bw(num_updates, num_stages=num_stages, num_microbatches=num_microbatches,
        synchronous_start=0, synchronous_cooldown=0)

class Correction(NoCorrection):
    needs_update = True
    def apply(self, weights, update, delays):
        for weight, step, delay in zip(weights, update, delays, strict=True):
            if delay > 0:
                weight.add_(step, alpha=0.5)

def lr_schedule(num_updates):
    return lambda update: 1.0
"""
TARGETS = {
    **{name: name for name in ("model", "optimizer", "pipeline", "lr_schedule")},
    **{"data": "Text", "correction": "Correction"},
}
USUAL = {
    "data": ["data.path={corpus}"],
    "model": ["model.hidden_size=24", "model.num_layers=2", "model.intermediate_size=16"],
}
TWO = ["pipeline.num_stages=2", "pipeline.num_microbatches=2"]
WORDS = ["num_updates=2", "eval_every=2", "batch_size=2", "seq_len=16", "checkpoint_every=9"]


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Path]:
    """A folder of code with a part of each group, which has no key but those it must have."""
    folder, corpus = tmp_path / "own", small.corpus(tmp_path)
    folder.mkdir()
    (folder / "own_parts.py").write_text(SOURCE.format(corpus=str(corpus)))
    for group, target in TARGETS.items():
        (folder / group).mkdir()
        sizes = "num_stages: 1\nnum_microbatches: 1\n" if group == "pipeline" else ""
        (folder / group / "own.yaml").write_text(f"_target_: own_parts.{target}\n{sizes}")
    before = [*sys.path]
    yield folder
    sys.path[:] = before
    sys.modules.pop("own_parts", None)


ONE = [pytest.param([group], marks=pytest.mark.slow) for group in TARGETS]


@pytest.mark.parametrize("own", [[*TARGETS], *ONE], ids="+".join)
def test_it_trains_and_is_priced_reported_and_advised(
    own: list[str], code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = [word for group, words in USUAL.items() if group not in own for word in words]
    chosen = [f"{group}=own" for group in own if group not in ("pipeline", "correction")]
    base = [*WORDS, *chosen, *(word.format(corpus=tmp_path / "corpus") for word in usual)]
    late = "pipeline=own" if "pipeline" in own else "pipeline=pipedream_2bw"
    better = "correction=own" if "correction" in own else "correction=error_feedback"
    arms = {"sync": ["pipeline=sync"], "delay": [late], "better": [late, better]}
    arms = {arm: [*words, *TWO] for arm, words in arms.items()}
    store, common = tmp_path / "results", [f"code={code}", f"results={tmp_path / 'results'}"]
    sweep = {"grid": {}, "arms": arms, "seeds": [0, 1]}
    (tmp_path / "mine.yaml").write_text(json.dumps(sweep))
    asked = [f"sweep={tmp_path / 'mine.yaml'}", "scale=micro", *base, *common]

    assert sweeps([*asked, "dry_run=true"]) == 0
    assert "0 done, 6 to do" in capsys.readouterr().out
    for words in arms.values():
        for seed in (0, 1):
            assert trainer([*base, *words, *common, f"seed={seed}"]) == 0
    table = load(store)
    assert table["status"].eq("completed").all()
    assert table["data.path"].notna().all()
    assert sweeps(["status", *common[1:]]) == 0
    with with_figures():
        assert analysis([*common[1:], f"out={tmp_path / 'report'}"]) == 0
    assert "own" in (tmp_path / "report" / "index.html").read_text()
    asks_of_2bw = ["advise", "stages=2", "microbatches=2", *common[1:]]
    assert analysis(asks_of_2bw) == (2 if "pipeline" in own else 0)


def test_data_without_a_path_is_named(
    code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"code={code}", "data=own", "model.vocab_size=99", f"results={tmp_path / 'r'}"]
    assert trainer(words) == 2
    assert "must be that of the data, 257" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "corpus")
    assert sweeps(["sweep=main", "scale=micro", "dry_run=true", *words[:2], words[3]]) == 0
    assert "data      own is not prepared here" in capsys.readouterr().out


def test_a_job_asks_for_the_paths_that_data_has(code: Path) -> None:
    words = ["sweep=main", "results=/shared/results", f"code={code}"]
    require_shared(parse_request([*words, "data=own"]))
    for other in ([], ["data=wiki"]):
        with pytest.raises(BadInput, match=r"data\.path=: must be given as an absolute path"):
            require_shared(parse_request([*words, *other]))


def test_a_scales_word_for_a_key_that_a_choice_lacks_has_no_effect(code: Path) -> None:
    rate, chosen = "optimizer.lr=0.004", [f"code={code}", "optimizer=own"]
    of_scale = Composer(if_there=[rate, "batch_sizes=3"])
    assert "lr" not in of_scale([*chosen, rate])["optimizer"]
    assert of_scale([rate])["optimizer"]["lr"] == 0.004
    for word, compose in ((rate, Composer()), ("batch_sizes=3", of_scale)):
        with pytest.raises(BadInput, match="must be a key of the config"):
            compose([*chosen, word])


TWO_IN_ONE = """
from pipegap.trainer.base.ranges import Few
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.schedules.recipes import constant_delay
import torch

def _of(scale):
    def optimizer(parameters):
        return torch.optim.SGD([weight for _, weight in parameters], lr=scale)
    return optimizer

first_optimizer, second_optimizer = _of(0.1), _of(0.2)

def first_pipeline(num_updates, *, num_stages: Few, num_microbatches: Few, delay: Few = 1):
    return constant_delay(num_updates, delay=delay, num_stages=num_stages,
        num_microbatches=num_microbatches, synchronous_start=0, synchronous_cooldown=0)

def second_pipeline(num_updates, *, num_stages: Few, num_microbatches: Few):
    return first_pipeline(num_updates, num_stages=num_stages, num_microbatches=num_microbatches,
        delay=2)

class FirstCorrection(NoCorrection):
    share = 0.5
    def lr_factor(self, update, delay):
        return self.share if delay else 1.0

class SecondCorrection(FirstCorrection):
    share = 0.1

class FirstTracker:
    def __init__(self, about, *, path: str):
        self.path, self.line = path, f"{type(self).__name__} {about.arm}"
    def log(self, row):
        pass
    def finish(self, outcome):
        with open(self.path, "a") as file:
            print(self.line, file=file)

class SecondTracker(FirstTracker):
    pass
"""
NUMBERS = ("first", "second")
LONGER = ["num_updates=4", "eval_every=4", *WORDS[2:]]


def test_two_of_each_kind_in_one_file_are_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They train, are priced, told apart in every table, and a tracker of one's own is chosen."""
    folder, corpus, store = tmp_path / "own", small.corpus(tmp_path), tmp_path / "results"
    folder.mkdir()
    (folder / "error_feedback.py").write_text(TWO_IN_ONE)
    for group in ("optimizer", "pipeline", "correction", "tracking"):
        (folder / group).mkdir()
        for number in NUMBERS:
            is_class = group in ("correction", "tracking")
            kind = {"tracking": "Tracker"}.get(group, group.capitalize())
            name = f"{number.capitalize()}{kind}" if is_class else f"{number}_{group}"
            keys = {
                "pipeline": "num_stages: 1\nnum_microbatches: 1\n",
                "tracking": f"path: {tmp_path / 'tracked'}\n",
            }.get(group, "")
            yaml = f"_target_: error_feedback.{name}\n{keys}"
            (folder / group / f"{number}.yaml").write_text(yaml)
    sizes = ["model.hidden_size=16", "model.num_layers=1", "model.intermediate_size=16"]
    base = [*LONGER, *sizes, "model.num_heads=2", "model.num_kv_heads=1", f"data.path={corpus}"]
    common = [f"code={folder}", f"results={store}"]
    late = {f"late_{number}": [f"pipeline={number}"] for number in NUMBERS}
    late |= {
        f"better_{number}": ["pipeline=pipedream_2bw", f"correction={number}"] for number in NUMBERS
    }
    arms = {"sync": ["pipeline=sync"], "delay": ["pipeline=pipedream_2bw"], **late}
    sweep = {"base": common[:1], "grid": {"optimizer": [*NUMBERS]}, "arms": arms, "seeds": [0]}
    (tmp_path / "mine.yaml").write_text(json.dumps(sweep))
    words = [f"sweep={tmp_path / 'mine.yaml'}", "scale=micro", *base, common[1]]
    with as_in_a_new_process():
        assert sweeps([*words, "dry_run=true"]) == 0
        assert "12 to do" in capsys.readouterr().out
        for number in NUMBERS:
            for chosen in arms.values():
                assert trainer([*base, *chosen, *common, f"optimizer={number}"]) == 0
            tracking = parse_request([*words, f"tracking={number}"]).tracking
            with tracking.of("id", "delay", {"results": str(store)}, sweeps=()) as tracker:
                tracker.log({"update": 0})
    assert (tmp_path / "tracked").read_text() == "FirstTracker delay\nSecondTracker delay\n"
    table = gaps(load(store))
    for _, of_optimizer in table.groupby("optimizer"):
        assert of_optimizer["arm"].to_list() == [
            *("delay", "delay_error_feedback.FirstCorrection"),
            *("delay_error_feedback.SecondCorrection", "error_feedback.first_pipeline(1)"),
            "error_feedback.second_pipeline",
        ]
        assert of_optimizer["n"].eq(1).all()
        assert of_optimizer["loss"].nunique() == 4, "first_pipeline is the plain delay"
    assert {*table["optimizer"]} == {*NUMBERS}
    assert table.groupby("arm")["loss"].nunique().eq(2).all()


def test_a_pace_is_of_one_optimizer_and_pipeline() -> None:
    """Two functions of one file train at two speeds."""
    kinds = {
        pace_kind({"optimizer": {"_target_": first}, "pipeline": {"_target_": second}})
        for first in ("mine.a", "mine.b")
        for second in ("mine.c", "mine.d")
    }
    assert len(kinds) == 4
