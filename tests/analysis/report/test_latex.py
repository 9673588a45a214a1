"""Tables for papers: what they say, and that pdflatex makes a page of them."""

import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis.report.page.listing import Listing, listed, write_latex

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
    assert rf"\begin{{tabular}}{{llrr{'r' * 30}}}" in lines, "without the empty column"
    heads, first, second = lines[4], *lines[6:8]
    assert heads.startswith("optimizer & sync setting & gap & n & wide column 0 & ")
    assert r"a \& 5 \% of \$x\$ \# b\_c \{d\} \textasciitilde{} \textasciicircum{} " in first
    assert r"$<$1$>$ $|$y$|$ $-$ $\lambda$ $\times$ $\tau$ $\beta$$_2$ $\le$" in first
    assert "$-$0.0123 {[}$-$0.0200, $-$0.0100{]} & 3 & 0 &" in first
    assert second.startswith("{[}adamw{]} & ")
    assert r"\texttt{U+6570} \texttt{U+1F600}" in first


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
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
