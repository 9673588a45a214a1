"""Tables of a report: both protocols, remedies, and what is missing with the hours it takes."""

import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.report.facts import cost, missing
from pipegap.analysis.report.page.page import Listing, listed, write_latex
from pipegap.analysis.report.paper_tables import (
    OF_DELAY,
    OF_FEEDBACK,
    OF_POINT,
    REMEDIES,
    protocols,
    remedies,
)
from pipegap.analysis.statistics.tax import reported_taxes
from pipegap.analysis.table import names
from pipegap.trainer.store.records import Record, RecordedTrial
from tests.support.synthetic_store import NONE, SYNC, TWO_BUFFERED, config, put, result, write

MATCHED = {
    "_target_": "pipegap.trainer.corrections.matched_error_feedback.MatchedErrorFeedback",
    "coefficient": 1.0,
    "lag": 1,
}
THREE = {
    **{
        "_target_": "pipegap.trainer.schedules.constant_delay",
        "num_stages": 1,
        "num_microbatches": 1,
    },
    **{"synchronous_start": 0, "synchronous_cooldown": 0, "delay": 3},
}
WORDS, ARMS, SEEDS = ("sweep=main", "scale=tiny"), ("sync", "delay"), (0,)


def point(store: Path, optimizer: str, lr: float, gap: float) -> None:
    for arm, loss in (("sync", 1.7), ("delay", 1.7 + gap), ("delay_ef", 1.7 + gap / 4)):
        losses = [loss + 0.01 * (arm == "delay") * seed for seed in (-1, 0, 1)]
        put(store, arm, losses, optimizer=optimizer, lr=lr, weight_decay=1.0)


def test_rows_say_whose_values_they_have(tmp_path: Path) -> None:
    point(tmp_path, "adamw", 0.002, 0.4)
    point(tmp_path, "muon", 0.002, 0.1)
    point(tmp_path, "muon", 0.008, 0.2)
    trials = load(tmp_path)
    table = protocols(trials, gaps(trials), "long")
    assert [*zip(table["optimizer"], table["rates"], strict=True)] == [
        ("muon", "AdamW's"),
        ("muon", "its own"),
        ("adamw", "AdamW's"),
    ], "the optimizer of the lowest loss first"
    assert table["gap"].tolist() == pytest.approx([0.1, 0.2, 0.4])
    assert table["EF gap"].tolist() == pytest.approx([0.025, 0.05, 0.1])
    assert table["removed"].tolist() == pytest.approx([0.75] * 3)
    assert table["optimizer.lr"].tolist() == [0.002, 0.008, 0.002]


def test_one_protocol_alone_is_no_comparison(tmp_path: Path) -> None:
    point(tmp_path, "adamw", 0.002, 0.4)
    point(tmp_path, "muon", 0.002, 0.1)
    trials = load(tmp_path)
    assert protocols(trials, gaps(trials), "long").empty


def put_two(
    store: Path, pipeline: object, correction: object, loss: float, **measured: float
) -> None:
    """Two seeds of an arm, whose number of the delay is that of its schedule."""
    for seed in (0, 1):
        settings = config(seed=seed)
        settings |= {"pipeline": pipeline, "correction": correction}
        delay = {str(SYNC): 0, str(TWO_BUFFERED): 1, str(THREE): 3}[str(pipeline)]
        outcome = result(settings, loss + 0.001 * seed, delays=[delay], wall_seconds=0.0)
        write(store, settings, outcome | measured)


def test_a_row_has_gap_and_cost_of_its_arm(tmp_path: Path) -> None:
    """By delay, then by gap; a remedy twice as slow takes twice the time of sync."""
    put_two(tmp_path, SYNC, NONE, 2.0)
    put_two(tmp_path, THREE, MATCHED, 2.1, peak_memory_bytes=3 * 10**9, tokens_per_second=10_000.0)
    put_two(tmp_path, THREE, NONE, 2.5)
    put_two(tmp_path, TWO_BUFFERED, NONE, 2.2)
    trials = load(tmp_path)
    table = remedies(trials, gaps(trials), "tiny")
    assert table["arm"].tolist() == ["delay", "constant_delay(3)_matched_ef", "constant_delay(3)"]
    assert table["delay"].tolist() == [1, 3, 3]
    assert table["gap"].tolist() == pytest.approx([0.2, 0.1, 0.5])
    assert table["memory ratio"].tolist() == pytest.approx([1, 3, 1])
    assert table["time ratio"].tolist() == pytest.approx([1, 2, 1])
    assert table.loc[1, "removed"] == pytest.approx(0.8)


def asked_for(*seconds: float | None) -> Record:
    trials = {
        str(number): RecordedTrial("delay", 0, 500, 1e6, s) for number, s in enumerate(seconds)
    }
    ids = frozenset(trials)
    return Record("main", "tiny", "main-tiny", WORDS, "", ARMS, SEEDS, True, (), ids, trials)


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        ((1800.0, 5400.0), "2 trials of 1 sweep are missing: 2.0 h one after the other, 1,000"),
        ((1800.0, None), ": 30 min one after the other without 1 of which it is not known, 1"),
        ((None, None), "2 trials of 1 sweep are missing: how long they take is not known, 1,000"),
    ],
)
def test_hours_are_those_of_the_trials_whose_time_is_known(
    seconds: tuple[float | None, ...], says: str
) -> None:
    nothing_yet = pd.DataFrame({"trial_id": [], "status": []})
    assert says in cost(
        missing(nothing_yet, [asked_for(*seconds)], names=(), store="results=results")
    )


def test_latex_has_the_words_of_the_page(tmp_path: Path) -> None:
    gap = {"gap": [0.5], "gap_low": [0.4], "gap_high": [0.6]}
    listing = listed("t", pd.DataFrame({"arm": ["delay_ef"], **gap, "removed": 0.58}), "", "t.csv")
    assert listing.rows[0][1].values == [0.5, 0.4, 0.6]
    write_latex(listing, tmp_path)
    text = (tmp_path / "t.tex").read_text()
    assert "delay\\_ef & +0.5000 {[}+0.4000, +0.6000{]} & 58\\% \\\\" in text
    assert text.index("\\toprule") < text.index("\\midrule") < text.index("\\bottomrule")


NAMES = {"delay_ef": "delay + EF"}


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("loss_sync", "sync loss"),
        ("tax_n", "token tax, n"),
        ("removed_n", "gap removed, n"),
        ("delay_ef n", "delay + EF, n"),
        ("delay_ef gap", "delay + EF gap"),
        ("paper delay_ef", "paper delay + EF"),
        ("EF removed", "EF gap removed"),
        ("accuracy_norm difference", "normalized accuracy difference"),
        ("optimizer.lr", "learning rate"),
        ("trainer_version", "trainer version"),
        ("memory (GiB)", "memory (GiB)"),
    ],
)
def test_heads_are_words_and_the_csv_keeps_its_names(column: str, said: str) -> None:
    [head] = listed("t", pd.DataFrame({column: [1.0]}), "", "t.csv", arms=NAMES).heads
    assert (head.title, head.names) == (said, [column])


def test_a_column_that_is_no_word_has_a_head_of_its_own() -> None:
    """As has what a table of trials, gaps or taxes calls by a short name."""
    columns = {*REMEDIES, *OF_POINT, *OF_DELAY, *OF_FEEDBACK, *reported_taxes()}
    columns -= {name for name in columns if name.endswith(("_low", "_high"))}
    for name in columns:
        assert not re.search(r"_|\.|\btax n\b|\bnum\b", names.head(name, {})), name
    assert names.HEADS.keys().isdisjoint(names.KEYS)


# Tables for papers: what they say, and that pdflatex makes a page of them.

ODD = r"a & 5 % of $x$ # b_c {d} ~ ^ \\ <1> |y| − λ × τ β₂ ≤ … — [0.1] é ß Ð ¨ 数 😀"
LETTERS = "".join(chr(code) for code in range(0xA0, 0x250))


def odd_table() -> Listing:
    table = pd.DataFrame(
        {
            "optimizer": ["muon", "[adamw]"],
            "setting_sync": [ODD, LETTERS],
            "gap": [-0.0123, 1.5],
            "gap_low": [-0.02, 1.0],
            "gap_high": [-0.01, 2.0],
            "n": [3, 5],
            "empty": [None, None],
            **{f"wide_column_{at}": [at, at] for at in range(30)},
        }
    )
    return listed("Odd", table, "", "odd.csv")


def test_cells_are_escaped_heads_are_words_and_numbers_stand_to_the_right(tmp_path: Path) -> None:
    write_latex(odd_table(), tmp_path)
    lines = (tmp_path / "odd.tex").read_text().splitlines()
    assert r"\begin{tabular}{ll}" in lines
    heads, first, second = lines[4], *lines[6:8]
    assert heads.startswith("optimizer & sync setting \\\\")
    assert r"a \& 5 \% of \$x\$ \# b\_c \{d\} \textasciitilde{} \textasciicircum{} " in first
    assert r"$<$1$>$ $|$y$|$ $-$ $\lambda$ $\times$ $\tau$ $\beta$$_2$ $\le$" in first
    assert second.startswith("{[}adamw{]} & ")
    assert r"\texttt{U+6570} \texttt{U+1F600}" in first


def test_a_wide_table_becomes_several_that_say_the_same_cells(tmp_path: Path) -> None:
    """Each row of each part begins with what it is of; no part is wider than a line."""
    write_latex(odd_table(), tmp_path)
    parts = (tmp_path / "odd.tex").read_text().split(r"\midrule")[1:]
    rows = [
        [line.removesuffix(r" \\").split(" & ") for line in part.splitlines()[1:3]]
        for part in parts
    ]
    assert {row[0] for first, second in rows for row in (first, second)} == {"Muon", "{[}adamw{]}"}
    [first, second] = ([cell for part in rows for cell in part[at][1:]] for at in (0, 1))
    assert first[1:] == ["$-$0.0123 {[}$-$0.0200, $-$0.0100{]}", "3", *map(str, range(30))]
    assert second[1:] == ["+1.5000 {[}+1.0000, +2.0000{]}", "5", *map(str, range(30))]
    assert len(parts) < 10
    # The parts behind that of the long column, by the words alone.
    assert all(sum(map(len, row)) < 95 for part in rows[1:] for row in part)


def has_latex() -> bool:
    """Whether pdflatex is there, with the package that a plain installation may lack."""
    if shutil.which("pdflatex") is None or shutil.which("kpsewhich") is None:
        return False
    found = subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True, check=False)
    return found.returncode == 0


def test_differences_have_a_sign_and_ratios_none() -> None:
    columns = {"gap": 0.01, "tax": 1.02, "memory ratio": 1.5, "delay_ef gap": 0.02}
    ends = {f"{name}{end}": value for name, value in columns.items() for end in ("_low", "_high")}
    [row] = listed("Signs", pd.DataFrame([columns | ends]), "", "signs.csv").rows
    assert [cell.words for cell in row] == [
        *("+0.0100 [+0.0100, +0.0100]", "1.0200 [1.0200, 1.0200]"),
        *("1.5000 [1.5000, 1.5000]", "+0.0200 [+0.0200, +0.0200]"),
    ]


@pytest.mark.skipif(not has_latex(), reason="pdflatex is not installed, or lacks booktabs")
def test_pdflatex_makes_one_page_no_line_of_which_is_too_wide(tmp_path: Path) -> None:
    write_latex(odd_table(), tmp_path)
    packages = r"\usepackage{booktabs, graphicx} \usepackage[T1]{fontenc}"
    assert f"% {packages}" == (tmp_path / "odd.tex").read_text().splitlines()[0]
    body = r"\begin{document}\noindent\input{odd.tex}\end{document}"
    (tmp_path / "page.tex").write_text(rf"\documentclass{{article}} {packages} {body}")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout
    assert "Output written on page.pdf (1 page" in ran.stdout
    assert "Overfull" not in ran.stdout
    assert "Missing character" not in (tmp_path / "page.log").read_text(errors="replace")
