"""The rows of all optimizers of a store, and the sentence of each."""

from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.__main__ import main as analysis
from pipegap.analysis.advice.advice import ranking, sentence
from pipegap.analysis.advice.advise import ROW, advices, handover, verdict_rows
from pipegap.analysis.advice.verdict import GO, UNDECIDED, listed
from pipegap.analysis.figures import BY_NAME
from pipegap.analysis.report.report import report
from tests.support.reports import with_figures
from tests.support.synthetic_store import ids, put, record, write_arms


def add_runs(store: Path, short: float, long: float) -> None:
    """Sync ends at 1, delayed runs of 400 and of 550 updates at these losses; three seeds."""
    put(store, "sync", [1.0, 1.01, 1.02])
    put(store, "delay_ef", [short, short + 0.01, short + 0.021])
    put(store, "delay_ef", [long, long + 0.01, long + 0.021], num_updates=550)


def test_one_row_per_optimizer_and_rival(tmp_path: Path) -> None:
    """At 37.5 % more updates the loss is 0.1 lower, at 6.25 % a sixth of the way there."""
    add_runs(tmp_path, 1.04, 0.9)
    write_arms(tmp_path, {"sync": [1.0, 1.1]}, optimizer="lion")  # no delay: no advice
    write_arms(tmp_path, {"sync": [1.0, 1.1], "delay": [1.2, None]}, optimizer="muon")
    table = verdict_rows(load(tmp_path), stages=4, microbatches=8)
    assert {name: str(dtype) for name, dtype in table.dtypes.items()} == ROW
    assert [*dict.fromkeys(table["optimizer"])] == ["adamw", "muon"], "the lowest loss first"
    by_rival = table.set_index("rival")
    muon, adamw = (by_rival[by_rival["optimizer"] == name] for name in ("muon", "adamw"))
    assert [*muon.index] == [*adamw.index]
    assert adamw.index.is_unique
    between = "between 400 and 550 against 400 updates"
    for rival, speedup, verdict, evidence in (
        ("1F1B", 11 / 8, "go", "550 against 400 updates"),
        ("interleaved 1F1B (4 parts)", 35 / 32, "not enough data", between),
        ("ZB-H1", 9 / 8, "go", between),
        ("ZB-V", 17 / 16, "not enough data", between),
        ("DualPipeV", 17 / 16, "not enough data", between),
    ):
        assert adamw.loc[rival, ["verdict", "evidence"]].tolist() == [verdict, evidence]
        assert adamw.loc[rival, "speedup"] == pytest.approx(speedup)
        share = (speedup - 1) / (11 / 8 - 1)
        assert adamw.loc[rival, "difference"] == pytest.approx(0.04 - 0.14 * share + 1e-3 / 3)
    assert {*adamw["n"]} == {3}
    assert {*muon["verdict"]} == {"stay"}  # it diverged
    assert {*muon["n"]} == {0}


@pytest.mark.parametrize(
    ("short", "long", "said"),
    [
        (
            1.0,
            0.9,
            "AdamW: go, against every schedule; in the time of 1F1B it makes 37 % more updates and "
            "ends lower by 0.0997 [",
        ),
        (
            1.02,
            0.9,
            "AdamW: go against {go}; not enough data against {open}; in the time of 1F1B it makes "
            "37 % more updates and ends lower by 0.0997 [",
        ),
        (
            1.3,
            1.2,
            "AdamW: stay, against every schedule; in the time of 1F1B it makes 37 % more updates "
            "and ends higher by 0.2003 [",
        ),
        (
            1.3,
            0.999,
            "AdamW: not enough data, against any schedule; in the same time its loss is -0.0007 [",
        ),
    ],
    ids=["go", "go against some", "stay", "undecided"],
)
def test_one_sentence_per_optimizer(tmp_path: Path, short: float, long: float, said: str) -> None:
    add_runs(tmp_path, short, long)
    [advice] = advices(load(tmp_path), stages=4, microbatches=8)
    if "{go}" in said:
        labels: dict[str, list[str]] = {GO: [], UNDECIDED: []}
        for rival in advice.rivals.values():
            labels[rival.decision.word].append(rival.label)
        said = said.format(go=listed(labels[GO]), open=listed(labels[UNDECIDED]))
    assert sentence(advice).startswith(said)
    first, _, then = str(advice).partition("\n\n")
    size = "how its losses change with size is not known"
    of = f"delay + Error Feedback: {size}; time simulated for 4 stages, 8 microbatches"
    assert first == f"tiny (450k parameters), wiki, 400 updates, {of}"
    assert then.startswith(said)


BY_LOSS = {"adamw": (1.30, 1.20), "muon": (1.00, 0.92), "soap": (1.01, 0.90)}
"""Optimizer → the loss of sync after 400 updates, and that of the delayed run after 550."""
RANKED = ["soap", "muon", "adamw"]


def rank_store(store: Path) -> None:
    """All go; after 400 updates Muon ends lowest, in the time of 1F1B SOAP does."""
    for optimizer, (sync, long) in BY_LOSS.items():
        put(store, "sync", [sync, sync + 0.01, sync + 0.02], optimizer=optimizer)
        put(store, "delay_ef", [sync, sync + 0.01, sync + 0.021], optimizer=optimizer)
        losses = [long, long + 0.01, long + 0.021]
        put(store, "delay_ef", losses, optimizer=optimizer, num_updates=550)


def test_optimizers_stand_by_their_loss_in_the_same_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the answer, its lines of code, tables and figures: not by name, nor by the loss after as
    many updates."""
    rank_store(tmp_path)
    trials = load(tmp_path)
    answers = advices(trials.sort_values("trial_id"), stages=4, microbatches=8)
    assert [answer.optimizer for answer in answers] == RANKED
    line = "lowest loss in the time of 1F1B: SOAP 0.910, Muon 0.930, AdamW 1.210"
    assert [*ranking(answers)] == [line]
    assert handover(answers).startswith("to go with SOAP ")
    assert [*trials["optimizer"].unique()] == RANKED
    table = gaps(trials)
    assert [*table["optimizer"].unique()] == RANKED
    figure = BY_NAME["final_losses"]
    drawn = str([chart.to_dict() for chart in figure.charts(figure.data(trials, table))])
    assert "'sort': ['SOAP', 'Muon', 'AdamW']" in drawn
    assert analysis(["advise", "stages=4", "microbatches=8", f"results={tmp_path}"]) == 0
    assert line in capsys.readouterr().out


def test_a_report_has_one_order_of_optimizers_also_where_it_compares_the_short_runs(
    tmp_path: Path,
) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    rank_store(store)
    compared = load(store).query("num_updates == 400")["trial_id"].tolist()
    record(store, "main", "tiny", ids(store), compared=compared)
    with with_figures(()):
        report(store, out, "main-tiny")
    text = (out / "index.html").read_text()
    for head in ('<table class="gaps">', '<table class="answer">'):
        rows = text.partition(head)[2].partition("</table>")[0]
        places = [rows.index(f"<th>{name}</th>") for name in ("SOAP", "Muon", "AdamW")]
        assert places == sorted(places)
    assert [*pd.read_csv(out / "gaps.csv")["optimizer"].unique()] == RANKED
    assert "<b>lowest loss in the time of 1F1B: SOAP 0.910, " in text
