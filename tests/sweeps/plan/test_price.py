"""A plan says what sweeps will cost, and what of that is measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sweeps.__main__ import main
from sweeps.plan.sweep_plan import all_planned, plan_sweeps
from sweeps.request.command_line import parse_request
from sweeps.request.expand import Trial
from sweeps.request.files import known
from tests.support import small
from tests.support.make import lines_of_make
from tests.support.records import finished
from tests.support.trials import Stop, stop_at
from trainer.config.compose import compose
from trainer.config.plan import RECORD, plan_trial
from trainer.trial import run_trial

SWEEP = """\
grid: {optimizer: [adamw, muon]}
arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}
seeds: [0, 1]
verdict: none
"""


def written(folder: Path, name: str, text: str = SWEEP) -> str:
    (folder / f"{name}.yaml").write_text(text)
    return str(folder / f"{name}.yaml")


def planned(*words: str) -> list[Trial]:
    return all_planned(plan_sweeps(parse_request(words)))


def plan(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The lines of the plan, by their first word."""
    assert main([*words, "dry_run=true"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: line for line in lines}


def record(folder: Path, config: dict[str, Any], **result: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plain = finished(tokens=1000)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "result.json").write_text(json.dumps({**plain, **result}))


def hours(line: str, unit: str) -> float:
    found = re.search(rf"([\d.e+-]+) {unit}-hours", line)
    assert found is not None, line
    return float(found[1])


def test_trials_that_sweeps_share_are_counted_and_run_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = written(tmp_path, "one")
    other = written(tmp_path, "other", SWEEP.replace("[adamw, muon]", "[sgd, muon]"))
    words = [f"sweep={one},{other}", f"results={tmp_path / 'store'}"]
    assert "16 asked, 12 unique, 0 done, 12 to do" in plan(words, capsys)["trials"]
    assert [sweep.label for sweep in plan_sweeps(parse_request(words))] == [
        "one-tiny",
        "other-tiny",
    ]
    alone = {t.plan.trial_id for path in (one, other) for t in planned(f"sweep={path}", words[1])}
    assert {trial.plan.trial_id for trial in planned(*words)} == alone


def test_hours_are_those_of_finished_trials_of_the_same_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One trial of the sweep is done, and of another sweep one with another batch."""
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path}", "num_threads=2"]
    trials = planned(*words)
    [done] = [t for t in trials if "muon" in str(t.config) and t.arm == "sync"][:1]
    record(done.folder, done.config, tokens_per_second=400.0)
    other = {**done.config, "batch_size": 32}
    record(tmp_path / "trials" / "other", other, tokens_per_second=1e6)
    line = plan(words, capsys)["time"]
    assert "7 of 7 trials at the measured speed" in line
    assert "assumed" not in line
    expected = 2 * 7 * trials[0].plan.tokens / 400 / 3600  # on two cores each
    assert hours(line, "core") == pytest.approx(expected, rel=0.01)
    mixed = plan([*words, "grid.batch_size=[16,32,8]"], capsys)["time"]
    assert "15 of 23 trials at the measured speed" in mixed
    assert "8 only assumed, at 5e+10 FLOP/s per core" in mixed


def test_of_a_shape_the_same_optimizer_and_pipeline_count_before_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path}", "seeds=[0]"]
    trials = planned(*words)
    slow = [t for t in trials if "muon" in str(t.config) and t.arm == "sync"]
    fast = [t for t in trials if "adamw" in str(t.config) and t.arm == "sync"]
    record(slow[0].folder, slow[0].config, tokens_per_second=100.0)
    record(fast[0].folder, fast[0].config, tokens_per_second=500.0)
    line = plan([*words, "seeds=[1]", "grid.optimizer=[adamw]"], capsys)["time"]
    tokens = trials[0].plan.tokens
    expected = (tokens / 500 + tokens / 300) / 3600  # sync, and delay by the median of both
    assert hours(line, "core") == pytest.approx(expected, rel=0.01)


def test_without_measurements_hours_say_that_they_are_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path / 'store'}"]
    record(tmp_path / "store/trials/broken", {"model": "of another time"}, tokens_per_second=1.0)
    line = plan(words, capsys)["time"]
    assert "0 of 8 trials at the measured speed" in line
    flops = sum(trial.plan.flops for trial in planned(*words))
    assert hours(line, "core") == pytest.approx(flops / 50e9 / 3600, rel=0.01)


def test_every_rank_of_a_gang_is_paid_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gang = ["runner=pipelined", "pipeline.num_stages=2", "pipeline.num_microbatches=4"]
    gang += ["num_replicas=2", "device=cuda"]
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path}", *gang]
    trials = planned(*words)
    for trial in trials[1:]:
        record(trial.folder, trial.config, tokens_per_second=1000.0)
    line = plan([*words, "gpus_per_trial=0.5"], capsys)["time"]
    tokens = trials[0].plan.tokens
    assert hours(line, "GPU") == pytest.approx(4 * tokens / 1000 / 3600, rel=0.01)
    longest = re.search(r"longest trial ([\d.e-]+) hours", line)
    assert longest is not None
    assert float(longest[1]) == pytest.approx(tokens / 1000 / 3600, rel=0.01)


@pytest.mark.parametrize(
    ("given", "priced"), [([], known("scale")), (["SCALE=135m"], ["135m"])], ids=["all", "one"]
)
def test_make_figures_prices_every_scale_or_one(given: list[str], priced: list[str]) -> None:
    """Every sweep at once, and no report is made."""
    made = ("-o", ".venv/.ready", "-o", "data/wiki/manifest.json")
    lines = "\n".join(lines_of_make(*made, "figures", "DRY_RUN=1", *given))
    assert f"for scale in {' '.join(priced)};" in lines
    assert "sweep=all scale=$scale dry_run=true" in lines
    assert "analysis" not in lines


def test_emulated_trials_may_share_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path}", "device=cuda"]
    trials = planned(*words)
    record(trials[0].folder, trials[0].config, tokens_per_second=1000.0)
    whole, half = (plan([*words, f"gpus_per_trial={n}"], capsys)["time"] for n in (1, 0.5))
    assert hours(half, "GPU") == pytest.approx(hours(whole, "GPU") / 2, rel=0.01)


DELAY_OF_3 = ("pipeline=constant_delay", "pipeline.delay=3")
LAYOUTS = [
    ["pipeline=sync"],
    ["pipeline=pipedream_2bw"],
    ["pipeline=pipedream_2bw", "correction=error_feedback"],
    ["pipeline=pipedream_2bw", "correction=weight_prediction"],
    ["pipeline=pipedream_2bw", "dtype=bfloat16"],
    ["pipeline=pipedream", "pipeline.num_stages=4"],
    [*DELAY_OF_3],
    ["pipeline=pipedream_2bw", "correction=learning_rate"],
    [*DELAY_OF_3, "correction=error_feedback", "correction.lag=delay"],
    [*DELAY_OF_3, "correction=taylor", "correction.decay=0.9"],
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
def test_the_size_of_a_checkpoint_is_foreseen(layout: list[str], tmp_path: Path) -> None:
    """Against one that is written: AdamW's, whose state is counted exactly."""
    small.corpus(tmp_path)
    words = [
        f"data.path={tmp_path / 'corpus'}",
        "batch_size=1",
        "seq_len=8",
        "num_updates=5",
        "checkpoint_every=4",
        f"out={tmp_path / 't'}",
    ]
    config = compose([*words, *layout])
    with pytest.raises(Stop):
        run_trial(config, stop_at(4))
    [path] = (tmp_path / "t").glob("checkpoint-*")
    assert plan_trial(config).checkpoint_bytes == pytest.approx(path.stat().st_size, rel=0.15)


def test_what_is_kept_of_a_trial_is_foreseen(tmp_path: Path) -> None:
    config = small.config(tmp_path, "num_updates=200", "save_final=true")
    run_trial(config)
    files = {
        f.stat().st_ino: f.stat().st_size for f in tmp_path.glob("results/**/*") if f.is_file()
    }
    assert plan_trial(config).kept_bytes == pytest.approx(sum(files.values()), rel=0.3)
    assert plan_trial({**config, "num_updates": 1, "save_final": False}).kept_bytes < RECORD + 200
