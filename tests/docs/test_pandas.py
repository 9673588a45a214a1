"""The tables have the columns of their schema, and the notebook runs."""

import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from findings.front import JOB, NOTEBOOK, executed
from pipegap.analysis import best, downstream, gaps, load
from pipegap.analysis.table.schema import BEST, DOWNSTREAM, GAP, TRIAL
from tests.support.answers import write_answers
from tests.support.synthetic_store import write_arms

ROOT = Path(__file__).parents[2]
SECTIONS = {"load": TRIAL, "gaps": GAP, "best": BEST, "downstream": DOWNSTREAM}


def test_the_tables_have_the_dtypes_of_the_schema(tmp_path: Path) -> None:
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
