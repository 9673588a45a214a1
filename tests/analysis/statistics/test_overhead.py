"""Speed, time and memory of arms beside those of sync."""

from pathlib import Path

from pipegap.analysis import load
from pipegap.analysis.statistics.pairs import overhead
from tests.support.synthetic_store import config, result, write


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
