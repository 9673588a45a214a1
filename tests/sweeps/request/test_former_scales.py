"""Names that scales had before version 0.2 are understood, and stores of that time still open."""

import json
from pathlib import Path

import pytest

from analysis.table.records import records
from sweeps.plan.sweep_plan import plan_sweeps
from sweeps.plan.sweep_record import write
from sweeps.request.command_line import parse_request
from sweeps.store.opened import FileStore
from tests.support.sweep_requests import only
from tests.support.synthetic_store import record

SAID = "long is called tiny now, and tiny is called few_updates"


def test_long_is_tiny_and_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep=main", "seeds=[0]"]
    former, present = (parse_request([*words, f"scale={scale}"]) for scale in ("long", "tiny"))
    assert former == present
    assert capsys.readouterr().err == f"scale=long: {SAID}\n"


def test_the_scales_of_a_former_sweep_file_are_those_of_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "grid: {optimizer: [sgd]}\narms: {sync: [pipeline=sync]}\nseeds: [0]\n"
        "scales: {tiny: ['seeds=[1]'], long: ['seeds=[2]'], micro: ['seeds=[3]']}\n"
    )
    seeds = {"few_updates": [1], "tiny": [2], "micro": [3]}
    assert {name: only(f"sweep={path}", f"scale={name}").seeds for name in seeds} == seeds
    assert SAID in capsys.readouterr().err


def _former_record(store: Path, scale: str) -> None:
    record(store, "main", scale, [f"trial-{scale}"], words=["sweep=main", f"scale={scale}"])
    path = store / "sweeps" / f"main-{scale}.json"
    held = json.loads(path.read_text())
    del held["format"]
    path.write_text(json.dumps(held))


def test_a_former_store_opens_with_the_names_of_today(tmp_path: Path) -> None:
    for scale in ("long", "tiny", "micro"):
        _former_record(tmp_path, scale)
    held = {kept.label: kept for kept in records(tmp_path)}
    assert [*held] == ["main-few_updates", "main-micro", "main-tiny"]
    assert [*held["main-few_updates"].trials] == ["trial-tiny"]
    assert [*held["main-tiny"].trials] == ["trial-long"]
    assert held["main-tiny"].words == ("sweep=main", "scale=tiny")


def test_a_sweep_of_today_takes_no_former_record_away(tmp_path: Path) -> None:
    _former_record(tmp_path, "tiny")
    request = parse_request(
        ["sweep=main", "scale=tiny", "seeds=[0]", "advice=null", f"results={tmp_path}"]
    )
    write(request, plan_sweeps(request), FileStore(tmp_path))
    held = {kept.label: kept for kept in records(tmp_path)}
    assert [*held["main-few_updates"].trials] == ["trial-tiny"]
    assert len(held["main-tiny"].trials) == 9
