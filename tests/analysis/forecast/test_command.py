"""`forecast` and `forecasts` from the command line, before and after the run."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from analysis.__main__ import main
from tests.support.simulated_ladders import SIZE, Truth, ladder, write
from tests.support.synthetic_store import put

WORDS = ("optimizer=muon", "updates=12800", "batch=128")
TRUTH = Truth()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path / "store", ladder(TRUTH, np.random.default_rng(0)))
    return tmp_path / "store"


def run(store: Path, *words: str) -> int:
    return main(["forecast", f"results={store}", *words])


def checked(store: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The last cells of the table of `forecasts`: the measured gap, n, the error, the verdict."""
    capsys.readouterr()
    assert main(["forecasts", f"results={store}", f"record={store.parent / 'record'}"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    return [cell.strip() for cell in rows[-1].split("|")[5:-1]]


def put_longest(store: Path, gaps: Sequence[float]) -> None:
    keys = {"optimizer": "muon", "num_updates": 12_800, "batch_size": 2, "seq_len": 64}
    level = TRUTH.loss(12_800, 128)
    put(store, "sync", [level] * len(gaps), **keys)
    put(store, "delay", [level + gap for gap in gaps], **keys)


def test_numbers_for_people_and_for_programs(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(store, *WORDS, "format=json") == 0
    [numbers] = json.loads(capsys.readouterr().out)
    assert numbers["gap_low"] < numbers["gap"] < numbers["gap_high"]
    assert numbers["gap_low"] < TRUTH.gap(12_800, 128) < numbers["gap_high"]
    assert (numbers["updates"], numbers["batch"], numbers["parameters"]) == (12_800, 128, SIZE)
    assert run(store, *WORDS) == 0
    out = capsys.readouterr().out
    assert (
        f"| delay | {numbers['gap']:+.4f} [{numbers['gap_low']:+.4f}, {numbers['gap_high']:+.4f}]"
        in out
    )
    assert "no term of parameters, which does not vary" in out
    assert "T=3,200, B=128, N=450,000 from shorter rungs:" in out


def test_a_target_too_far_is_not_enough_data(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("optimizer=muon", "updates=50000", "batch=1000000", "parameters=1e9")
    assert run(store, *words, f"record={tmp_path / 'r'}", f"out={tmp_path / 'o'}") == 0
    assert "not enough data: updates=50000 is too far" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_a_forecast_is_recorded_and_then_checked(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = store.parent / "record"
    assert run(store, *WORDS, f"record={record}") == 0
    [path] = record.iterdir()
    written = path.read_text()
    assert run(store, *WORDS, f"record={record}") == 0
    assert path.read_text() == written  # and so its date
    assert checked(store, capsys) == ["", "", "", "not run yet"]
    forecast = json.loads(written)
    put_longest(store, [forecast["gap"] - 0.001, forecast["gap"] + 0.003])
    measured, n, error, verdict = checked(store, capsys)
    assert measured.startswith(f"{forecast['gap'] + 0.001:+.4f} [")
    assert (n, error, verdict) == ("2", "-0.0010", "inside")


def test_the_score_counts_what_was_checked(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = store.parent / "record"
    assert run(store, *WORDS, f"record={record}") == 0
    assert run(store, "optimizer=muon", "updates=6400", "batch=128", f"record={record}") == 0
    put_longest(store, [0.3, 0.3])
    capsys.readouterr()
    main(["forecasts", f"record={record}", f"results={store}"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[-2].strip() for line in lines if "T=12,800" in line] == ["outside"]
    assert lines[-1] == (
        "1 checked: 0 inside, 1 outside of the 95 % interval; 0 of them above what was measured, "
        "1 below."
    )


def test_a_larger_ladder_of_other_settings_takes_no_forecast_away(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another ladder, of another momentum, has more rungs and ends at the same target."""
    assert run(store, *WORDS, f"record={store.parent / 'record'}") == 0
    put_longest(store, [0.001, 0.003])
    before = checked(store, capsys)
    keys = {"optimizer": "muon", "batch_size": 2, "seq_len": 64, "momentum": 0.99}
    for updates in range(12_800, 16_000, 100):
        put(store, "sync", [1.0, 1.0], num_updates=updates, **keys)
        put(store, "delay", [2.0, 2.0], num_updates=updates, **keys)
    assert checked(store, capsys) == before
    assert before[:2] != ["", ""]


def test_what_had_ended_before_is_no_forecast(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_longest(store, [0.001, 0.002])
    assert run(store, *WORDS, f"record={store.parent / 'record'}") == 0
    assert checked(store, capsys)[-1] == "no forecast: runs had ended before it"


def test_the_figure_is_written(store: Path, tmp_path: Path) -> None:
    assert run(store, *WORDS, f"out={tmp_path / 'figures'}") == 0
    csv = (tmp_path / "figures" / "forecast.csv").read_text()
    assert "True" in csv  # extrapolated
    assert "<svg" in (tmp_path / "figures" / "forecast.svg").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("updates=100",), "optimizer"),
        (("optimizer=muon",), "updates"),
        (("optimizer=muon", "updates=1.5"), "updates=1.5"),
        (("optimizer=muon", "updates=100"), "batch=: is missing"),
        (("optimizer=soap", "updates=100"), "optimizer=soap: must be in the store, which has muon"),
        ((*WORDS, "arm=delay_ef"), "arm=delay_ef"),
        ((*WORDS, "seeds=0"), "seeds=0"),
        ((*WORDS, "colour=3"), "colour=3"),
        ((*WORDS, "format=xml"), "format=xml"),
        ((*WORDS, "record=s3://a"), "record=s3://a"),
    ],
)
def test_bad_input_is_one_line(
    store: Path, words: Sequence[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(store, *words) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("content", [None, "{", "[]", '{"gap": 1}'])
def test_a_folder_without_forecasts_is_refused(
    store: Path, tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "record"
    if content is not None:
        folder.mkdir()
        (folder / "a.json").write_text(content)
    assert main(["forecasts", f"results={store}", f"record={folder}"]) == 2
    assert "record=" in capsys.readouterr().err
