"""A plan says what sweeps will cost, and what of that is measured."""

from pathlib import Path

import pytest
import torch

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.plan.devices import counted_seconds
from pipegap.sweeps.plan.pace import ASSUMED_START
from pipegap.sweeps.plan.pricing import Cost, costs
from pipegap.sweeps.plan.sweep_plan import Round, all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.config.work import note_compiled
from pipegap.trainer.store.files import FileStore
from pipegap.trainer.store.records import asked_by
from tests.support.documents import write_bin
from tests.support.records import leave_finished

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


def cost(*words: str) -> Cost:
    """What the trials take that have still to run, all on one kind of machine."""
    request = parse_request(words)
    now = Round.first(request, FileStore(request.results))
    [total] = costs(now, now.todo)
    return total


def test_hours_are_those_of_finished_trials_of_the_same_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One trial of the sweep is done, and of another sweep one with another batch."""
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path}", "num_threads=2"]
    trials = planned(*words)
    [done] = [t for t in trials if "muon" in str(t.config) and t.arm == "sync"][:1]
    leave_finished(done.folder, done.config, tokens_per_second=400.0)
    other = {**done.config, "batch_size": 32}
    leave_finished(tmp_path / "trials" / "other", other, tokens_per_second=1e6)
    line = plan(words, capsys)["time"]
    assert "7 of 7 trials by the time that finished ones of their shape took" in line
    assert "assumed" not in line
    price = cost(*words)
    assert price.total == pytest.approx(2 * 7 * trials[0].plan.tokens / 400)  # on two cores each
    assert price.clock(7) == pytest.approx(2 * trials[0].plan.tokens / 400)
    assert price.clock(1_000) == price.longest == pytest.approx(trials[0].plan.tokens / 400)
    mixed = plan([*words, "grid.batch_size=[16,32,8]"], capsys)["time"]
    assert "15 of 23 trials by the time" in mixed
    assert "8 by counted FLOPs and bytes, at rates measured on a core" in mixed


def test_of_a_shape_the_same_optimizer_and_pipeline_count_before_others(tmp_path: Path) -> None:
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path}", "seeds=[0]"]
    trials = planned(*words)
    slow = [t for t in trials if "muon" in str(t.config) and t.arm == "sync"]
    fast = [t for t in trials if "adamw" in str(t.config) and t.arm == "sync"]
    leave_finished(slow[0].folder, slow[0].config, tokens_per_second=100.0)
    leave_finished(fast[0].folder, fast[0].config, tokens_per_second=500.0)
    tokens = trials[0].plan.tokens
    expected = tokens / 500 + tokens / 300  # sync, and delay by the median of both
    assert cost(*words, "seeds=[1]", "grid.optimizer=[adamw]").total == pytest.approx(expected)


def test_without_measurements_hours_say_that_they_are_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path / 'store'}"]
    leave_finished(
        tmp_path / "store/trials/broken", {"model": "of another time"}, tokens_per_second=1.0
    )
    line = plan(words, capsys)["time"]
    assert "0 of 8 trials by the time" in line
    assert "8 by counted FLOPs and bytes, at rates measured on a core" in line
    counted = sum(counted_seconds(t.config, t.plan) for t in planned(*words))
    assert counted > 60
    assert cost(*words).total == pytest.approx(8 * ASSUMED_START + counted)
    halved = cost(*words, "num_threads=2").total  # of one core: as many core-seconds
    assert halved == pytest.approx(16 * ASSUMED_START + counted)


def test_the_compiler_has_a_line_of_its_own_until_it_has_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path / 'store'}"]
    assert "compiler" not in plan(words, capsys)
    words += ["scale=tiny"]
    assert (
        "the first trials compile graphs that all others share" in plan(words, capsys)["compiler"]
    )
    for trial in planned(*words):
        note_compiled(trial.config)
    assert "compiler" not in plan(words, capsys)


def test_start_and_evaluation_count_as_they_were_measured(tmp_path: Path) -> None:
    """A trial of 400 updates with 4 evaluations took 30 s more than its training. One of 200 has
    half of the tokens and two of the evaluations."""
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path}", "grid.optimizer=[adamw]"]
    done = planned(*words)[0]
    tokens = done.plan.tokens
    took = {"tokens": tokens, "tokens_per_second": 500.0, "num_updates": 400}
    leave_finished(done.folder, done.config, **took, wall_seconds=tokens / 500 + 30)
    assert cost(*words).total == pytest.approx(3 * (tokens / 500 + 30))
    shorter = cost(*words, "num_updates=200")
    assert shorter.total == pytest.approx(4 * (tokens / 1000 + 15))


def test_the_plan_is_a_table_with_a_row_per_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row has 8 of 12 trials, and the other one 4 that are not above; shared ones run once."""
    one = written(tmp_path, "one")
    other = written(tmp_path, "other", SWEEP.replace("[adamw, muon]", "[sgd, muon]"))
    words = [f"sweep={one},{other}", f"results={tmp_path / 'store'}", "device=cuda", "gpus=3"]
    assert main([*words, "dry_run=true"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["sweep", "trials", "shared", "done", "to", "do", "on", "3", "GPUs"]
    assert [line.split()[:5] for line in lines[2:5]] == [
        ["one-few_updates", "8", "0", "0", "8"],
        ["other-few_updates", "8", "4", "0", "4"],
        ["together", "16", "4", "0", "12"],
    ]
    assert len({len(line) for line in lines[1:5]}) == 1
    assert "power" not in "\n".join(lines)
    assert "16 asked, 12 unique, 0 done, 12 to do" in lines[0]
    alone = {t.plan.trial_id for path in (one, other) for t in planned(f"sweep={path}", words[1])}
    assert {trial.plan.trial_id for trial in planned(*words[:2])} == alone


def test_hours_have_a_price_in_money(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path}", "device=cuda"]
    hours = cost(*words).total / 3600
    line = plan([*words, "hourly=2000"], capsys)["price"]
    assert line == f"price     {2000 * hours:,.2f}: {hours:.2g} GPU hours, 2000 each"
    small = plan([*words, "hourly=0.001"], capsys)["price"]
    assert float(small.split()[1].rstrip(":")) == pytest.approx(0.001 * hours, rel=0.05)
    assert float(small.split()[2]) == pytest.approx(hours, rel=0.05) or hours >= 1
    assert "price" not in plan(words, capsys)
    assert asked_by([*words, "hourly=2000"]) == asked_by(words)  # its label stays


def test_every_rank_of_a_gang_is_paid_for(tmp_path: Path) -> None:
    gang = ["runner=pipelined", "pipeline.num_stages=2", "pipeline.num_microbatches=4"]
    gang += ["num_replicas=2", "device=cuda"]
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path}", *gang]
    trials = planned(*words)
    for trial in trials[1:]:
        leave_finished(trial.folder, trial.config, tokens_per_second=1000.0)
    tokens = trials[0].plan.tokens
    price = cost(*words, "gpus_per_trial=0.5")
    assert price.unit == "GPU"
    assert price.total == pytest.approx(4 * tokens / 1000)
    assert price.longest == pytest.approx(tokens / 1000)


def test_submit_prices_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the words with which it would be sent; nothing answers at the address."""
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    words = ["sweep=main", "scale=micro", "seeds=[0]", f"results={tmp_path}"]
    assert main([*words, "dry_run=true"]) == 0
    plan = capsys.readouterr().out
    assert main(["submit", *words, "follow=false", "dry_run=true"]) == 0
    assert capsys.readouterr().out == plan


def test_emulated_trials_may_share_a_gpu(tmp_path: Path) -> None:
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path}", "device=cuda"]
    trials = planned(*words)
    leave_finished(trials[0].folder, trials[0].config, tokens_per_second=1000.0)
    whole, half = (cost(*words, f"gpus_per_trial={n}") for n in (1, 0.5))
    assert half.total == pytest.approx(whole.total / 2)


def test_the_paper_s_scales_tell_sizes_memory_and_how_the_model_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a GPU and without the data."""
    words = ("sweep=main", "advice=null", "grid.optimizer=[muon]", "seeds=[0]")
    short = (*words, f"results={tmp_path}")
    true = ("runner=pipelined", "pipeline.num_stages=8", "pipeline.num_microbatches=8")
    price = plan([*short, "scale=2b", *true], capsys)
    assert price["models"] == (
        "models    moe_2b 1,915,784,192 parameters, 506,498,048 active per token"
    )
    assert "8.63 GB weights and states" in price["memory"]
    assert price["memory"].endswith("fit 85 GB of H100")
    assert price["split"] == (
        "split     stages of 2, 2, 2, 2, 2, 3, 3, 0 layers: 8 ranks are at most 3.31 times as fast "
        "as one"
    )
    assert "5e+10 in the longest trial" in price["tokens"]
    assert "data/fineweb is not prepared here" in price["data"]
    alone = plan([*short, "scale=2b"], capsys)
    assert "split" not in alone
    assert "39.4 GB weights and states" in alone["memory"]
    assert "share" not in alone["memory"]
    shared = plan([*short, "scale=2b", "gpus_per_trial=0.5"], capsys)
    assert "; 2 trials share a GPU: " in shared["memory"]
    assert shared["memory"].endswith("do not fit 85 GB of H100")


@pytest.mark.parametrize(
    ("num_updates", "told"), [(50, None), (60, "1.2 passes"), (250, "5 passes")]
)
def test_a_plan_says_that_the_longest_trial_repeats_its_data(
    num_updates: int, told: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split, number in ("train", 6400), ("val", 2000):
        write_bin(tmp_path / f"x_{split}.bin", [1] * number, 20240520, 1, "<u2")
    words = ["sweep=main", "advice=null", "grid.optimizer=[muon]", "seeds=[0]"]
    words += ["data=bins", f"data.path={tmp_path}", "data.vocab_size=50", "model.vocab_size=50"]
    words += ["batch_size=2", "seq_len=64", f"num_updates={num_updates}"]
    price = plan([*words, f"results={tmp_path}"], capsys)
    if told is None:
        assert "data" not in price
    else:
        assert price["data"] == f"data      {told} over its tokens in the longest trial"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
@pytest.mark.parametrize("scale", ["2b", "10b"])
def test_without_gpus_the_paper_s_scales_are_refused_in_one_line(
    scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep=main", "grid.optimizer=[muon]", "seeds=[0]", f"results={tmp_path / 'none'}"]
    assert main([*words, f"scale={scale}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "device=cuda" in line
    assert "data/fineweb: holds no manifest.json; prepare it with `make data-fineweb`" in line
    assert not [*(tmp_path / "none").rglob("*.json")]
