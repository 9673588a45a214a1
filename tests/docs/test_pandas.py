"""What the documents say of the tables is so: the schema is the code's, the notebook runs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from analysis import best, gaps, load
from analysis.table.schema import BEST, GAP, TRIAL, Columns
from tests.support.synthetic_store import write_arms

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "gaps.ipynb"
SECTIONS = {"load": TRIAL, "gaps": GAP, "best": BEST}


@pytest.mark.parametrize(("function", "columns"), SECTIONS.items())
def test_the_documented_schema_is_that_of_the_code(function: str, columns: Columns) -> None:
    text = (ROOT / "docs" / "pandas.md").read_text()
    section = text.split(f"## `analysis.{function}(")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\S+)` \| (.+?) \| (.+) \|$", section, re.MULTILINE)
    assert {name: (dtype, says) for name, dtype, says in rows} == dict(columns)


def test_the_tables_have_the_documented_dtypes(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, 1.1], "delay": [1.2, None]})
    trials = load(tmp_path)
    tables = {"load": trials, "gaps": gaps(trials), "best": best(trials)}
    for function, columns in SECTIONS.items():
        table = tables[function]
        assert not table.empty
        assert {name: str(table[name].dtype) for name in columns} == {
            name: dtype for name, (dtype, _) in columns.items()
        }


def test_the_notebook_has_no_output_and_no_place_of_a_machine() -> None:
    """Its cells are what a reader runs; what they print depends on the store."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert "/home" not in NOTEBOOK.read_text()


def test_the_notebook_runs_and_shows_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: dict[str, list[float | None]] = {
        "sync": [1.70, 1.69, 1.71],
        "delay": [1.90, 1.90, 1.93],
        "delay_ef": [1.75, 1.74, 1.77],
    }
    write_arms(tmp_path / "results", losses)
    (tmp_path / "docs").mkdir()
    for name, value in (("PYTHONPATH", str(ROOT)), ("IPYTHONDIR", str(tmp_path / "ipython"))):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIPEGAP_RESULTS", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(tmp_path / "docs")}}
    NotebookClient(notebook, timeout=300, resources=where).execute()
    shown = "".join(
        str(output.get("text", "")) + str(output.get("data", {}))
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    assert "image/png" in shown
    assert f"{(0.20 + 0.21 + 0.22) / 3:+.4f} [" in shown  # as advise writes the gap of the delay
    assert "not enough data" in shown
