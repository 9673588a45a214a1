"""A machine is measured once, and says which graphs it has."""

import datetime
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from pipegap.analysis.figures.files import kept
from pipegap.sweeps.__main__ import main
from pipegap.sweeps.plan import devices
from pipegap.trainer.base.places import cache_folder
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.work import FEEDBACK, OPERATION, STEP, note_compiled, to_compile
from tests.support.odd import json_files
from tests.support.records import leave_finished


@pytest.fixture(autouse=True)
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


def test_a_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
