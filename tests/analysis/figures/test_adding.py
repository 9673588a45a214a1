"""A figure is added by one file and one line, whatever its rows are."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis import gaps, load
from analysis.figures import MODULES, registered
from analysis.report import contents
from analysis.report.report import report
from tests.support.synthetic_store import write_arms

EXTENDED = (*MODULES, "tests.support.gap_intervals")


def test_a_figure_of_intervals_is_in_the_files_and_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [added] = {*registered(EXTENDED)} - {*registered(MODULES)}
    monkeypatch.setattr(contents, "FIGURES", [added])  # the others take time
    store, out = tmp_path / "store", tmp_path / "out"
    write_arms(store, {"sync": [1.7, 1.69], "delay": [1.9, 1.95], "delay_ef": [1.8, 1.82]})
    report(store, out)
    shown = pd.read_csv(out / "gap_intervals.csv").set_index("arm")
    expected = gaps(load(store)).set_index("arm")
    assert shown["low"].to_dict() == pytest.approx(expected["low"].to_dict())
    assert (out / "gap_intervals.png").read_bytes().startswith(b"\x89PNG")
    assert "Gaps with their intervals" in (out / "gap_intervals.svg").read_text()
    page = (out / "index.html").read_text()
    assert 'id="figure-gap_intervals">' in page
    assert all(f'"high":{high:.6g}' in page for high in shown["high"])
