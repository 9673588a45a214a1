"""A malformed sweep file: exit code 2, one line that names key and fix, and nothing is started."""

from pathlib import Path

import pytest

from pipegap.sweeps.__main__ import main
from tests.support.refusals import Refused

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


# name → a text of the good file, what takes its place, and parts of the message, with … between;
# tests/trainer/base/test_documents.py has what else is no YAML
BAD = {
    "typo in a key": ("seeds:", "seed:", "sweep.seed … known: seeds, "),
    "typo in a group": ("optimizer: [", "optimiser: [", "optimiser=adamw"),
    "typo in a dotted key": ("optimizer.lr: [", "optimizer.lrr: [", "optimizer.lrr=0.01"),
    "unknown group": ("pipeline=sync", "pipelines=sync", "pipelines=sync"),
    "unknown choice in the grid": ("muon", "muom", "optimizer=muom … muon"),
    "an arm that is a text": ("sync: [pipeline=sync]", "sync: pipeline=sync", "sweep.arms.sync"),
    "a grid that is a list": (GRID, "  - optimizer=adamw\n", "sweep.grid= … dictionary"),
    "a grid of nothing": (GRID, "", "sweep.grid=None … dictionary"),
    "no grid": (f"grid:\n{GRID}", "", "sweep.grid=missing … required"),
    "an axis that is one value": ("[0.01, 0.02]", "0.01", "sweep.grid.optimizer.lr=0.01 … list"),
    "an axis without values": ("[0.01, 0.02]", "[]", "sweep.grid.optimizer.lr … at least 1"),
    "an axis of lists": ("[0.01, 0.02]", "[[0.01]]", "sweep.grid.optimizer.lr … one value"),
    "nested mappings": ("[0.01, 0.02]", "[{optimizer: {lr: 1}}]", "optimizer.lr.0 … mapping"),
    "a repeated grid value": ("[0.01, 0.02]", "[0.01, 0.01]", "optimizer.lr … not repeat"),
    "a grid value of a wrong type": ("[0.01, 0.02]", "[fast]", "optimizer.lr=fast … number"),
    "a grid value out of range": ("[0.01, 0.02]", "[0.01, -1]", "optimizer.lr=-1 … greater"),
    "a choice that is no name": ("[adamw, muon]", "[adamw, 5]", "optimizer=5 … must be one of"),
    "a key in place of another": ("grid:", "scales:", "sweep= … scales is there twice"),
    "two axes for a key": (
        "optimizer: [adamw, muon]",
        "pair: [{optimizer: sgd, optimizer.lr: 1}]",
        "sweep.grid.pair=optimizer.lr … one place",
    ),
    "no arms": ("  sync: [pipeline=sync]\n  delay", "  delay", "sweep.arms … sync"),
    "arms without a list": ("sync: [pipeline=sync]", "sync:", "sweep.arms.sync … list"),
    "an arm twice": ("delay_ef:", "delay:", "delay is there twice"),
    "arms of the same overrides": (
        ", correction=error_feedback]",
        "]",
        "sweep.arms … delay and delay_ef … must differ",
    ),
    "a key twice": ("verdict: none", "seeds: [2]\nverdict: none", "seeds is there twice"),
    "coefficient out of range": (
        "correction=error_feedback]",
        "correction=error_feedback, correction.coefficient=-1]",
        "correction.coefficient=-1 … greater",
    ),
    "an override without =": ("pipeline=sync", "pipeline", "sweep.arms.sync.0 … key=value"),
    "an override without a key": ("batch_size=4", "=4", "sweep.base.0 … key=value"),
    "seeds that are no integers": ("[0, 1]", "[0, 0.5]", "sweep.seeds.1=0.5 … integer"),
    "seeds that are text": ("[0, 1]", "[a]", "sweep.seeds.0=a … integer"),
    "a negative seed": ("[0, 1]", "[-1]", "sweep.seeds.0=-1 … greater"),
    "a repeated seed": ("[0, 1]", "[1, 1]", "sweep.seeds … not repeat"),
    "no seeds": ("[0, 1]", "[]", "sweep.seeds … at least 1"),
    "the number of seeds": ("[0, 1]", "3", "sweep.seeds=3 … list"),
    "a seed in the grid": ("optimizer.lr: [0.01, 0.02]", "seed: [0, 1]", "seed=0 … seeds=["),
    "a seed in the base": ("batch_size=4", "seed=4", "seed=4 … seeds=["),
    "a folder in an arm": ("pipeline=sync", "out=here", "out=here … results=DIR"),
    "a batch that cannot be split": (
        "pipeline=sync]",
        "pipeline=sync, pipeline.num_microbatches=3]",
        "batch_size= … divisible … num_microbatches=3",
    ),
    "both lengths": ("seq_len=16", "tokens_per_parameter=20", "num_updates … exactly one"),
    "not YAML": ("verdict: none", "verdict: [", "sweep= … must be YAML"),
    "a merge key": ("verdict: none", "<<: {verdict: none}", "sweep.<<= … must be a known key"),
    "many seeds": ("[0, 1]", f"{[*range(1_001)]}", "sweep.seeds=[0, 1, 2, … at most 1000 items"),
    "many trials": ("[0, 1]", f"{[*range(900)]}", "4 points, 3 arms, 900 seeds … 10,000 trials"),
    "a seed without an end": ("[0, 1]", f"[{'9' * 5_000}]", "sweep.seeds.0=999 … integer"),
    "a grid value without an end": ("0.02]", ".inf]", "optimizer.lr=inf … finite number"),
    "a grid value that is no number": ("0.02]", ".nan]", "optimizer.lr=nan … finite number"),
    "a grid value with a NUL": ("muon", '"a\\0b"', "optimizer=a\\x00b … without control"),
    "a key of Hydra's": ("batch_size=4", "hydra.run.dir=x", "hydra.run.dir=x … has no effect"),
    "a list instead of a mapping": (GOOD, "- base\n", "sweep= … keys and values"),
    "an empty file": (GOOD, "", "sweep= … keys and values"),
    "a text": (GOOD, "main", "sweep= … keys and values"),
    "bytes": (GOOD, "\udcff", "sweep= … can be read"),
    "a negative margin": ("margin: 0.5", "margin: -0.5", "sweep.early_stop.margin=-0.5"),
    "a margin that is no number": ("0.5}", "wide}", "sweep.early_stop.margin=wide … number"),
    "typo in early_stop": ("margin:", "margn:", "sweep.early_stop.margn … known: margin"),
    "no margin": ("{margin: 0.5}", "{}", "sweep.early_stop.margin=missing"),
    "a bad word for a scale that is not asked for": (
        "few_updates: [eval_every=6]",
        "360m: ['seeds=[a]']",
        "sweep.scales.360m= … integer",
    ),
    "an unknown scale": ("{few_updates:", "{huge:", "sweep.scales … huge … among"),
    "an empty verdict": ("verdict: none\n", "verdict: ''\n", "sweep.verdict … at least 1"),
    "a verdict that is no text": ("verdict: none", "verdict: 3", "sweep.verdict=3 … string"),
}
BAD |= {
    "an unknown choice": ("pipedream_2bw]", "pipedream_3bw]", "pipeline=pipedream_3bw … sync"),
    "updates for years": ("eval_every=6", "num_updates=10000000000", "num_updates=1 … less"),
}
IN_AN_ARM = {
    "an arm that sets a key of the grid": ("optimizer.lr=1", "optimizer.lr … arms.delay"),
    "a coefficient without a correction": ("correction.coefficient=1", "correction.coefficient"),
    "too few microbatches": ("pipeline.num_stages=4", "pipeline.num_microbatches=1 … at least"),
    "more stages than layers": (
        "pipeline.num_stages=1000, pipeline.num_microbatches=4",
        "pipeline.num_microbatches=4 … at least num_stages",
    ),
}
"""Words of the delayed arm, and what the message has."""
BAD |= {name: ("delay: [", f"delay: [{word}, ", said) for name, (word, said) in IN_AN_ARM.items()}
AT_A_SCALE = {
    "a scale's seeds that repeat": ("'seeds=[0, 0]'", " … not repeat"),
    "a scale's axis that is one value": ("grid.optimizer=muon", "sweep.grid.optimizer=muon … list"),
    "a scale's axis that is no YAML": ("'grid.optimizer=[muon'", "grid.optimizer=[muon … be YAML"),
    "a scale's word of the grid": ("optimizer.lr=0.1", "optimizer.lr=0.1 … grid.optimizer.lr=["),
    "a seed for a scale": ("seed=3", "seed=3 … seeds=["),
}
"""A word for the scale that is asked for, and what the message has after its key."""
BAD |= {
    name: ("[eval_every=6]", f"[{word}]", f"sweep.scales.few_updates={said}")
    for name, (word, said) in AT_A_SCALE.items()
}
ADDED = {
    "sharing where nothing is tuned": ("shared: adamw", "sweep.shared=adamw … sweep.tune"),
    "sharing of an optimizer that is not in the grid": (
        "tune: {clip_norm: [1, 2]}\nshared: lion",
        "sweep.shared=lion … sweep.grid.optimizer",
    ),
    "tune of one factor": ("tune: {clip_norm: [1]}", "at least 2"),
    "tune factors that descend": ("tune: {clip_norm: [2, 1]}", "sweep.tune.clip_norm … ascending"),
    "a tune factor of 0": ("tune: {clip_norm: [0, 1]}", "sweep.tune.clip_norm.0=0 … a number from"),
    "a tune factor that is text": (
        "tune: {clip_norm: ['1e-3', 1]}",
        "sweep.tune.clip_norm.0=1e-3 … a number from 1e-06 to 1e+06",
    ),
    "an endless factor": ("tune: {clip_norm: [1, .inf]}", "tune.clip_norm.1=inf … a number from"),
    "tune of an axis": ("tune: {optimizer.lr: [1, 2]}", "sweep.tune=optimizer.lr … axis"),
    "tune of no number": ("tune: {dtype: [1, 2]}", "sweep.tune=dtype … number"),
}
"""What the good file gets as a further line, and what the message has."""
BAD |= {name: ("verdict:", f"{line}\nverdict:", said) for name, (line, said) in ADDED.items()}
ADVICE = {
    "stages: 4, microbatches: 8, arms: [late]": "arms=late … among delay, delay_ef",
    "stages: 4, microbatches: 8, arms: [sync]": "arms=sync … among delay, delay_ef",
    "stages: 4, arms: [delay]": "microbatches=missing … required",
    "stages: 4, microbatches: 2, arms: [delay]": "microbatches=2 … stages - 1 = 3",
    "stage: 4, microbatches: 8, arms: [delay]": "stage=4 … known: stages",
}
"""What the file asks, and what the message has after its key."""
BAD |= {
    words: ("verdict:", f"advice: {{{words}}}\nverdict:", f"sweep.advice.{said}")
    for words, said in ADVICE.items()
}


@pytest.mark.parametrize(("old", "new", "said"), BAD.values(), ids=BAD)
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
