"""A plan says what sweeps will cost, and what of that is measured."""

import datetime
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings

from pipegap.analysis.advice.speed import Costs, speed_up
from pipegap.analysis.figures.figure import kept
from pipegap.sweeps.__main__ import main
from pipegap.sweeps.plan import devices
from pipegap.sweeps.plan.devices import (
    ASSUMED_START,
    OF_STEP,
    Device,
    Rates,
    core,
    counted_seconds,
    device_of,
    known_devices,
    of_update_and_forward,
)
from pipegap.sweeps.plan.pricing import Cost, costs
from pipegap.sweeps.plan.sweep_plan import Round, all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.places import cache_folder
from pipegap.trainer.config.compose import Composer, compose
from pipegap.trainer.config.work import (
    FEEDBACK,
    OPERATION,
    STEP,
    StageWork,
    note_compiled,
    to_compile,
)
from pipegap.trainer.store.files import FileStore
from pipegap.trainer.store.records import asked_by
from tests.support.fuzzing import json_files
from tests.support.own_files import as_in_a_new_process, write_bin
from tests.support.small_sweep import ZEN_4
from tests.support.steps import words_of_scale
from tests.support.trials import leave_finished

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


def test_a_plan_says_which_rates_of_an_optimizers_own_file_the_scale_replaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "sign_descent.py").write_text(
        "from torch.optim import SGD\n\n\n"
        "def sign_descent(parameters, *, lr: float, weight_decay: float):\n"
        "    return SGD([w for _, w in parameters], lr=lr, weight_decay=weight_decay)\n"
    )
    node = "_target_: sign_descent.sign_descent\nlr: 0.001\nweight_decay: 0.1\n"
    (tmp_path / "optimizer" / "sign_descent.yaml").write_text(node)
    words = [f"sweep={written(tmp_path, 'one')}", f"results={tmp_path}", "scale=tiny"]
    words += [f"code={tmp_path}", "compile=false", "grid.optimizer=[adamw,lion,sign_descent]"]
    with as_in_a_new_process():
        _check_rates(words, capsys)


def _check_rates(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = plan(words, capsys)["rates"]
    assert line.startswith(
        "rates     optimizer.lr=0.002, optimizer.weight_decay=1 for all by scale=tiny; own files "
        "say adamw weight_decay 0.1; lion lr 0.0005, weight_decay 0.5; "
        "sign_descent lr 0.001, weight_decay 0.1; to keep them: "
    )
    [kept_words] = shlex.split(line.partition("to keep them: ")[2])
    assert "rates" not in plan([*words[:-1], kept_words], capsys)
    trial = planned(*words[:-1], kept_words)[0].config["optimizer"]
    assert (trial["lr"], trial["weight_decay"]) == (0.001, 0.1)
    # What a person sets is no news to that person.
    rates = ["optimizer.lr=0.002", "optimizer.weight_decay=0.3"]
    assert "rates" not in plan([*words, *rates], capsys)
    assert main([*words, "dry_run=true", "format=json"]) == 0
    assert line in json.loads(capsys.readouterr().out)["remarks"]


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
    assert "data/fineweb: holds no manifest.json; prepare it with `pipegap data fineweb`" in line
    assert not [*(tmp_path / "none").rglob("*.json")]


# A machine is measured once, and says which graphs it has.


@pytest.fixture
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiler"))
    (tmp_path / "compiler").mkdir()
    monkeypatch.setattr(devices, "SECONDS", 0.01)
    for remembered in (devices.measured, devices.measure_again, devices._counted):
        remembered.cache_clear()
    yield
    for remembered in (devices.measured, devices.measure_again, devices._counted):
        remembered.cache_clear()


@pytest.mark.usefixtures("empty_caches")
def test_a_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = devices.measured()
    assert {*rates.products} == {"float32", "bfloat16"}
    assert all(1e8 < rate < 1e13 for rate in (*rates.products.values(), rates.bytes))
    assert 1e-8 < rates.operation < 1e-4
    devices.measured.cache_clear()  # as in another process
    with monkeypatch.context() as patch:
        patch.setattr(devices, "measure", None)
        assert devices.measured() == rates
    devices.measured.cache_clear()
    monkeypatch.setattr("torch.__version__", "another")
    monkeypatch.setattr(devices, "measure", lambda: rates._replace(bytes=1e7))
    assert devices.measured().bytes == 1e7


RATES = devices.Rates({"float32": 1e11, "bfloat16": 2e11}, 9e10, 7e-7)
"""What these tests measure, on the day of the test."""


def as_file(**changes: object) -> bytes:
    return json.dumps({**RATES._asdict(), "day": "2026-01-02", **changes}).encode()


@pytest.mark.usefixtures("empty_caches")
@settings(max_examples=60)
@given(content=json_files(as_file()))
@example(content=as_file(products={"float32": 1e11}))
@example(content=as_file(bytes=-9e10))
@example(content=as_file(bytes=1e-300))
@example(content=as_file(operation=0))
@example(content=as_file(day=""))
def test_whatever_the_file_holds_rates_are_whole_and_plausible(content: bytes) -> None:
    path = devices._rates_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    devices.measured.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "measure", lambda: RATES)
        found = devices.measured()
    assert {*found.products} == {"float32", "bfloat16"}
    assert all(1e6 < rate < 1e18 for rate in (*found.products.values(), found.bytes))
    assert 1e-12 < found.operation < 1
    assert len(found.day) == len("2026-01-02")
    devices.measured.cache_clear()
    assert devices.measured() == found  # the file is good now


@pytest.mark.usefixtures("empty_caches")
def test_a_damaged_file_of_the_cache_is_made_again() -> None:
    assert kept(lambda: b"made", "a") == b"made"
    [letters] = (cache_folder() / "kept").iterdir()
    for damage in (b"", b"font"):
        letters.write_bytes(damage)
        assert kept(lambda: b"made", "a") == b"made"


def finished(store: Path, seconds: float, **more: object) -> None:
    """Leaves a trial of another shape in the store that trained as long as this."""
    words = ["model=nano", "num_updates=100", "seq_len=64", "batch_size=16", "device=cpu"]
    config = {**compose(words), **more}
    tokens = 100 * 64 * 16
    result = {"tokens": tokens, "tokens_per_second": tokens / seconds, "num_updates": 100}
    leave_finished(store / "trials" / "other", config, **result)


def the_day(store: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The day of the rates by which a plan counts, and the time that it counts."""
    words = ["sweep=main", "scale=few_updates", f"results={store}", "seeds=[0]", "advice=null"]
    assert main([*words, "grid.optimizer=[adamw]", "dry_run=true"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("time ")]
    time, day = line.split(" by counted FLOPs and bytes, at rates measured on a core on ")
    return day.rstrip(")"), time.split(", ")[0]


@pytest.mark.usefixtures("empty_caches")
@pytest.mark.parametrize(
    ("factor", "more", "is_measured_again"),
    [
        (1.0, {}, False),
        (1.9, {}, False),
        (2.2, {}, True),
        (1 / 2.2, {}, True),
        (5.0, {"device": "cuda"}, False),
        (5.0, {"code": str(Path(__file__).parent)}, False),
    ],
)
def test_rates_that_finished_trials_contradict_are_measured_again(
    factor: float,
    more: dict[str, object],
    is_measured_again: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A trial that took twice as long as counted, or half: the core was busy, then or now."""
    monkeypatch.setattr(devices, "measure", lambda: RATES)
    path = devices._rates_file()
    path.parent.mkdir(parents=True)
    slow = {"products": {"float32": 1e9, "bfloat16": 1e9}, "bytes": 1e9, "operation": 1e-4}
    path.write_text(json.dumps({**slow, "day": "2026-01-02"}))
    store = tmp_path / "store"
    day, time = the_day(store, capsys)
    assert day == "2026-01-02"
    config = compose(["model=nano", "num_updates=100", "seq_len=64", "batch_size=16", "device=cpu"])
    counted = 100 * devices.counted_update_and_forward(config, 100)[0]
    finished(store, factor * counted, **more)
    today = datetime.date.today().isoformat()
    new_day, new_time = the_day(store, capsys)
    assert new_day == (today if is_measured_again else "2026-01-02")
    assert (new_time != time) == is_measured_again


@pytest.mark.usefixtures("empty_caches")
def test_trials_of_another_machine_do_not_contradict_the_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "measure", lambda: RATES)
    day = the_day(tmp_path, capsys)
    finished(tmp_path, 1e5)
    attempt = {"attempt": 1, "host": "another", "from_update": 0}
    (tmp_path / "trials/other/attempt-000001.json").write_text(json.dumps(attempt))
    monkeypatch.setattr(devices, "measure", None)
    assert the_day(tmp_path, capsys) == day


@pytest.mark.usefixtures("empty_caches")
def test_what_is_compiled_is_not_priced_again() -> None:
    tiny = ("model=nano", "num_updates=1", "seq_len=64", "batch_size=2", "compile=update")
    sync, ef, muon, other = (
        compose([*tiny, *words])
        for words in (
            ("optimizer=adamw", "seed=3"),
            ("optimizer=adamw", "pipeline=pipedream_2bw", "correction=error_feedback"),
            ("optimizer=muon", "optimizer.lr=0.5"),
            ("optimizer=adamw", "seq_len=128"),
        )
    )
    passes = sum(to_compile([sync], OPERATION).values()) - STEP
    assert sum(to_compile([sync, ef, muon], OPERATION).values()) == passes + 2 * STEP + FEEDBACK
    assert sum(to_compile([sync], 2 * OPERATION).values()) == 2 * (passes + STEP)
    assert to_compile([{**sync, "compile": False}], OPERATION) == {}
    note_compiled(sync)
    assert to_compile([sync], OPERATION) == {}
    assert sum(to_compile([ef, muon], OPERATION).values()) == STEP + FEEDBACK
    assert len(to_compile([other], OPERATION)) == 2


# The time that a plan counts is near what was measured (bench/README.md).

EAGER, FOUR = "compile=false", "pipeline.num_microbatches=4"
EF = ("pipeline=pipedream_2bw", "correction=error_feedback")
UPDATE, BF16 = "compile=update", "dtype=bfloat16"
TRAINED: Sequence[tuple[str, str, tuple[str, ...], float]] = [
    ("H100", "135m", (), 259_517),  # fitted to it
    ("H100", "135m", (EAGER,), 134_738),
    ("H100", "135m", (FOUR,), 307_549),
    ("H100", "360m", (), 155_483),
    ("H200", "135m", (), 327_917),
    ("H200", "135m", (EAGER,), 164_314),
    ("H200", "135m", (*EF, FOUR), 352_962),
    ("core", "few_updates", ("optimizer=muon",), 16_990),  # of a Zen 4: shares are fits to these
    ("core", "few_updates", ("optimizer=soap",), 15_930),
    ("core", "tiny", (), 27_430),
    ("core", "tiny", ("optimizer=muon",), 16_820),
    ("core", "tiny", ("optimizer=soap",), 12_850),
    ("core", "few_updates", (UPDATE,), 19_010),
    ("core", "few_updates", (UPDATE, BF16), 37_050),
    ("core", "tiny", (UPDATE,), 56_690),
    ("core", "tiny", (UPDATE, *EF), 56_510),
    ("core", "tiny", (UPDATE, "optimizer=muon"), 30_490),
    ("core", "tiny", (UPDATE, "optimizer=soap"), 24_890),
]
"""Device, scale, words that come after those of the scale, and the tokens/s of one GPU or core."""
EVALUATED: Sequence[tuple[str, str, tuple[str, ...], float]] = [
    ("H100", "135m", (), 773_913),
    ("H100", "135m", ("eval_dtype=float32",), 109_124),
    ("H200", "135m", (), 964_939),
]


def counted(device: str, scale: str, words: Sequence[str]) -> tuple[float, float]:
    """Tokens/s of an update, and of a forward, that a plan counts with."""
    one = ("device=cpu", *words, "num_updates=1", "tokens_per_parameter=null")
    config = compose(words_of_scale(scale, *one))
    tokens = config["batch_size"] * config["seq_len"]
    of_core = core(ZEN_4, config["compile"])
    update, forward = of_update_and_forward(config, 1, {**known_devices(), "core": of_core}[device])
    return tokens / update, tokens / forward


@pytest.mark.parametrize(("device", "scale", "words", "measured"), TRAINED)
def test_training(device: str, scale: str, words: tuple[str, ...], measured: float) -> None:
    assert 0.8 < counted(device, scale, words)[0] / measured < 1.22


@pytest.mark.parametrize(("device", "scale", "words", "measured"), EVALUATED)
def test_evaluation(device: str, scale: str, words: tuple[str, ...], measured: float) -> None:
    assert 0.8 < counted(device, scale, words)[1] / measured < 1.2


def test_products_in_bf16_are_priced_as_a_core_without_instructions_for_them_makes_them() -> None:
    """Measured on a Zen without AVX-512: 48 ms an update of Muon, whose library iterates in bf16,
    with `compile=false`; the rule of a compiled update iterates in fp32."""
    rates = Rates({"float32": 81e9, "bfloat16": 2.42e9}, bytes=72e9, operation=0.88e-6)
    words = ("device=cpu", "num_updates=1", "optimizer=muon", "dtype=float32")
    eager, compiled = (
        of_update_and_forward(
            compose(words_of_scale("tiny", *words, way)),
            1,
            core(rates, way.removeprefix("compile=")),
        )[0]
        for way in ("compile=false", "compile=update")
    )
    assert 0.7 < 0.048 / eager < 1.4
    assert compiled < eager / 5


# Seconds of counted work: closed forms, and the ratios of pipelines.

compose_of_step_time = Composer()
SIMPLE = Device(
    "simple", products={"float32": 50.0}, attention={"float32": 25.0}, bytes=5.0, host=0.0
)


def test_seconds_are_work_over_rates_and_a_core_works_for_its_host_too() -> None:
    stages = [StageWork(75, 50, 5, 20, 100, 1), StageWork(0, 0, 10, 0, 0, 2)]
    assert SIMPLE.passes(stages, "float32") == 1 + 3 + 1 + 2
    assert SIMPLE.update(stages, "float32") == pytest.approx(20 / 5 + 100 / 50 / OF_STEP)
    in_float32 = [stage._replace(step_dtype="float32") for stage in stages]
    assert SIMPLE.update(in_float32, "bfloat16") == SIMPLE.update(stages, "float32")
    gpu = known_devices()["H100"]
    idle, busy = StageWork(0, 0, 0, 0, 0, 1000), StageWork(0, 0, gpu.bytes * 10, 0, 0, 1000)
    assert gpu.passes([idle], "float32") == pytest.approx(1000 * gpu.host)
    assert gpu.passes([busy], "float32") == pytest.approx(10)
    slow, fast = (
        core(Rates({"float32": 1e11 * x, "bfloat16": 2e11 * x}, 1e11 * x, 1e-6 / x), "update")
        for x in (1, 4)
    )
    on_core = slow.passes([busy._replace(bytes=slow.bytes)], "float32")
    assert on_core == pytest.approx(1 + 1000 * slow.host)
    assert slow.passes([busy], "float32") == pytest.approx(4 * fast.passes([busy], "float32"))


def test_a_trial_s_device() -> None:
    plain, compiled = (
        device_of(compose_of_step_time(["num_updates=1", f"compile={way}"]))
        for way in ("false", "update")
    )
    assert (plain.name, compiled.name) == ("core", "core")
    assert not compiled.is_gpu
    assert compiled.host < plain.host
    assert device_of({"device": "cuda:1"}).is_gpu


@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 8)])
def test_a_true_pipeline_s_time_is_that_of_its_schedule(p: int, m: int) -> None:
    """Flushed over 2BW: as the simulation of the advice with the same costs says."""
    shape = (f"pipeline.num_stages={p}", f"pipeline.num_microbatches={m}", "runner=pipelined")
    words = ("model=tiny_deep", "num_updates=9", f"batch_size={m}", *shape)
    times = {
        name: of_update_and_forward(compose_of_step_time([*words, f"pipeline={name}"]), 9, SIMPLE)[
            0
        ]
        for name in ("sync", "pipedream_2bw")
    }
    alone = compose_of_step_time([*words, "runner=emulated"])
    whole, forward = of_update_and_forward(alone, 9, SIMPLE)
    assert 3 * forward < whole < p * times["sync"]
    equal = speed_up(Costs((1.0,) * p, (2.0,) * p), m)
    assert 1 < times["sync"] / times["pipedream_2bw"] <= equal + 1e-9


def test_replicas_share_the_batch() -> None:
    one, two = (
        of_update_and_forward(
            compose_of_step_time(
                ["num_updates=1", "runner=pipelined", "batch_size=64", f"num_replicas={n}"]
            ),
            1,
            SIMPLE,
        )[0]
        for n in (1, 2)
    )
    assert one / 2 < two < 0.6 * one
