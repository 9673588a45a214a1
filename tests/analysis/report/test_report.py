"""`pipegap report` writes the same report from the same store, and never a traceback."""

from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.__main__ import main
from pipegap.analysis.figures import FIGURES
from pipegap.analysis.figures.style import ARMS, ORDERED, arm_styles, optimizer_styles
from pipegap.analysis.report import report as report_module
from pipegap.analysis.report.report import report
from pipegap.trainer.base.errors import BadInput
from tests.support.synthetic_store import config, ids, record, result, write, write_arms

TABLES = ("trials", "gaps", "claims", "missing", "provenance", "makers")
LOSSES: dict[str, list[float | None]] = {
    "sync": [1.70, 1.69],
    "delay": [2.2, None],
    "delay_ef": [1.9, 1.95],
}


def shown(store: Path, *names: str) -> dict[str, pd.DataFrame]:
    """The data of the figures of any trials (or these) that show something of a store, by name."""
    trials = load(store)
    table = gaps(trials)
    figures = [figure for figure in FIGURES if figure.name in names or not (names or figure.sweeps)]
    data = {figure.name: figure.data(trials, table) for figure in figures}
    return {name: rows for name, rows in data.items() if not rows.empty}


def test_the_command_writes_every_file_and_prints_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_arms(tmp_path / "results", LOSSES)
    assert main([f"results={tmp_path / 'results'}", f"out={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    names = {path.name for path in (tmp_path / "out").iterdir()}
    drawn = shown(tmp_path / "results")
    assert drawn
    figures = {f"{name}.{form}" for name in drawn for form in ("svg", "png", "pdf", "csv")}
    tables = {f"{name}.csv" for name in TABLES}
    assert names == figures | tables | {"index.html", "gaps.md", "gaps.tex", "trials"}
    assert "| +0.5000 n=1" in said.out
    assert "| 1 of 2" in said.out
    assert str(tmp_path / "out") in said.out


@pytest.mark.usefixtures("without_figures")
def test_what_is_left_out_is_said_in_the_file_too(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, None], "delay": [1.2, 1.2]})
    settings = config("delay", seed=0)
    write(tmp_path, settings, {"status": "failed", "data_hash": "d" * 64})
    write_arms(tmp_path, {"sync": [1.0], "delay_ef": [1.2]}, optimizer="muon")
    report(tmp_path, tmp_path / "out")
    text = (tmp_path / "out" / "gaps.md").read_text()
    for remark in (
        "1 of 7 failed: no reason is recorded (trial ",
        "1 seeds of adamw delay are left out: their sync trial diverged",
        "delay is missing: muon seeds 0",
        "delay_ef is missing: adamw seeds 0, 1",
    ):
        assert remark in text


@pytest.mark.usefixtures("without_figures")
def test_warnings_are_part_of_the_report(tmp_path: Path) -> None:
    for arm, commit in (("sync", "abc"), ("delay", "def")):
        settings = config(arm)
        write(tmp_path, settings, result(settings, 1.0, git=commit))
    assert "warning: 1 of 1 pairs mix git (def and abc" in report(tmp_path, tmp_path / "out")


def test_a_file_in_the_way_is_bad_input(tmp_path: Path) -> None:
    write_arms(tmp_path, LOSSES)
    (tmp_path / "out").write_text("")
    with pytest.raises(BadInput, match="out="):
        report(tmp_path, tmp_path / "out")


def test_figures_show_every_seed_of_the_best_point(tmp_path: Path) -> None:
    write_arms(tmp_path, LOSSES)
    for arm, loss in (("sync", 1.8), ("delay", 1.9)):
        settings = config(arm)
        settings["optimizer"]["lr"] = 0.001
        write(tmp_path, settings, result(settings, loss), curve=True)
    losses, curves = shown(tmp_path, "final_losses", "validation_curves").values()
    assert set(losses["group"]) == {"AdamW"}
    assert set(losses["setting"]) == {"learning rate 0.004: best sync of 2"}
    assert losses["quantity"].value_counts().to_dict() == {"loss": 6, "gap": 4}
    assert curves[curves["trial_id"] == "0000"]["tokens"].tolist() == [
        count * 4 * 16 * 128 for count in range(1, 101)
    ]
    assert curves[curves["status"] == "diverged"]["update"].tolist() == [3], "a part of 4 updates"


def test_arms_and_optimizers_keep_their_looks() -> None:
    found = arm_styles(of_series("pipedream", "delay", "delay_ef(0.5)"))
    assert found["delay"] == ARMS["delay"]
    assert found["pipedream"] != found["delay_ef(0.5)"]
    few = arm_styles(of_series(*(f"delay_ef({value})" for value in range(10))))
    assert len({style.color for style in few.values()}) == 10
    many = arm_styles(of_series(*(f"delay_ef({value})" for value in range(20))))
    assert len({(style.color, style.dash) for style in many.values()}) == 20
    looks = optimizer_styles(of_series("soap", "muon", "x"))
    colors = {name: style.color for name, style in looks.items()}
    assert colors["muon"] == optimizer_styles(of_series("muon"))["muon"].color
    assert len(set(colors.values())) == 3


def of_series(*names: str) -> pd.DataFrame:
    return pd.DataFrame({"series": names, "arm": names, "optimizer": names})


@pytest.mark.usefixtures("without_figures")
def test_many_sweeps_end_in_a_few_lines_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files have the rest."""
    for name, most in {"MOST_LINES": 4, "MANY": 20}.items():
        monkeypatch.setattr(report_module, name, most)
    store = tmp_path / "results"
    names = [f"optimizer{number}" for number in range(5)]
    for name in names:
        write_arms(store, {"sync": [1.0, 1.1], "delay": [1.1, 1.3]}, optimizer=name)
    for sweep in ("main", "optimizers", "momentum"):
        record(store, sweep, "tiny", ids(store), remarks=["chosen", "also"])
    text = report(store, tmp_path / "out").split("nothing is decided yet")[0]
    assert len(text.splitlines()) <= 10
    assert "5 gaps: " in text
    told = (tmp_path / "out" / "gaps.md").read_text()
    assert told.count(": chosen") == 3
    assert told.count("| delay") == len(names)
    monkeypatch.setattr(report_module, "MOST_GAPS", 3)
    monkeypatch.setattr(report_module, "MANY", 1_000)  # in this process
    report(store, tmp_path / "out")
    told = (tmp_path / "out" / "gaps.md").read_text()
    assert told.count("| delay") == 3
    assert "2 more rows: gaps.csv" in told


def test_series_that_differ_in_a_number_have_its_order_and_its_colours() -> None:
    values = [10, 2, 0.25, 0.5]
    series = ["sync", *(f"delay + EF, λ = {value}" for value in values), "PACI"]
    looks = arm_styles(pd.DataFrame({"series": series, "arm": ["sync", *["x"] * 5]}))
    ramp = [name for name in looks if "λ" in name]
    assert ramp == [f"delay + EF, λ = {value}" for value in sorted(values)]
    places = [ORDERED.index(looks[name].color) for name in ramp]
    assert places == sorted({*places})
    assert looks["PACI"].color not in ORDERED
