"""What the documents say of the tables is so: the schema is the code's, the notebook runs."""

import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from analysis import best, downstream, gaps, load
from analysis.table.schema import BEST, DOWNSTREAM, GAP, TRIAL, Columns
from findings.front import JOB, NOTEBOOK, executed
from tests.support.answers import write_answers
from tests.support.synthetic_store import write_arms

ROOT = Path(__file__).parents[2]
SECTIONS = {"load": TRIAL, "gaps": GAP, "best": BEST, "downstream": DOWNSTREAM}


@pytest.mark.parametrize(("function", "columns"), SECTIONS.items())
def test_the_documented_schema_is_that_of_the_code(function: str, columns: Columns) -> None:
    text = (ROOT / "docs" / "pandas.md").read_text()
    section = text.split(f"## `analysis.{function}(")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\S+)` \| (.+?) \| (.+) \|$", section, re.MULTILINE)
    assert {name: (dtype, says) for name, dtype, says in rows} == dict(columns)


def test_the_tables_have_the_documented_dtypes(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, 1.1], "delay": [1.2, None]})
    for folder in (tmp_path / "trials").iterdir():
        write_answers(folder)
    trials = load(tmp_path)
    tables = {
        "load": trials,
        "gaps": gaps(trials),
        "best": best(trials),
        "downstream": downstream(trials),
    }
    for function, columns in SECTIONS.items():
        table = tables[function]
        assert not table.empty
        assert {name: str(table[name].dtype) for name in columns} == {
            name: dtype for name, (dtype, _) in columns.items()
        }


def shown(notebook: nbformat.NotebookNode) -> list[str]:
    """What every cell shows, pictures aside: letters are placed by the fonts of a machine."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return [str(output.get("text") or output["data"].get("text/plain", "")) for output in outputs]


def pictures(notebook: nbformat.NotebookNode) -> int:
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_the_notebook_shows_what_the_published_trials_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs are those of its cells, on the trials of the README."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    kept = nbformat.read(NOTEBOOK, as_version=4)
    assert shown(executed()) == shown(kept), "make docs"
    assert pictures(kept) == 1
    trials = pd.read_csv(JOB)
    finals = trials.pivot_table(index=["optimizer", "seed"], columns="arm", values="final_val_loss")
    gap = (finals["delay"] - finals["sync"]).groupby("optimizer").mean()
    text = "\n".join(shown(kept))
    assert all(f"{gap[optimizer]:.6f}" in text for optimizer in ("adamw", "muon"))
    assert any(f"{one:+.4f} [" in text for one in gap)  # as advise writes it
    assert re.search("^(AdamW|Muon|SOAP): go,? against", text, re.MULTILINE)
