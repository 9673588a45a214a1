"""Speed, time and memory of arms beside those of sync."""

from pathlib import Path

from pipegap.analysis import load
from pipegap.analysis.report.contents import StoreViews
from pipegap.analysis.statistics.pairs import overhead
from tests.support.synthetic_store import config, result, write, write_in


def test_speed_counts_of_trials_that_had_the_machine_for_themselves(tmp_path: Path) -> None:
    """The first two of four trials of 40 s overlap; one device is another machine."""
    for arm, ended, device in (
        ("sync", 100.0, "a"),
        ("delay", 139.0, "a"),
        ("delay_ef", 180.0, "a"),
    ):
        settings = config(arm)
        write(tmp_path, settings, result(settings, 1.0, finished_at=ended, device_name=device))
    settings = config("sync", optimizer="muon")
    write(tmp_path, settings, result(settings, 1.0, finished_at=110.0, device_name="b"))
    table = overhead(load(tmp_path)).set_index(["optimizer", "arm"])
    assert table["speed n"].to_dict() == {
        ("adamw", "delay"): 0,
        ("adamw", "delay_ef"): 1,
        ("adamw", "sync"): 0,
        ("muon", "sync"): 1,
    }
    assert table["speed"].dropna().tolist() == [20_000, 20_000]
    assert (table["memory"] == 10**9).all()


def test_a_trial_beside_one_that_no_table_compares_has_no_speed(tmp_path: Path) -> None:
    """A longer run, which no sweep compares, ran beside the delayed trial on the same device."""
    store = tmp_path / "results"
    for number, (arm, ended, updates) in enumerate(
        [("sync", 100.0, 400), ("delay", 200.0, 400), ("delay", 230.0, 550)]
    ):
        trial = config(arm) | {"num_updates": updates}
        folder = store / "trials" / str(number)
        write_in(folder, trial, result(trial, 1.0, finished_at=ended, device_name="a"))
    views = StoreViews(load(store), [])
    compared = views.of(frozenset({"0", "1"}))
    table = overhead(compared.trials).set_index("arm")
    assert table["speed n"].to_dict() == {"sync": 1, "delay": 0}
    assert compared.gaps["setting"].tolist() == [""]
