"""Runs docs/gaps.ipynb on the README's published trials, and keeps what it shows."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "gaps.ipynb"
TRIALS = ROOT / "docs" / "trials.csv"
TIMEOUT = 300
"""Seconds that a cell may take."""


def executed(path: Path = NOTEBOOK) -> nbformat.NotebookNode:
    """The notebook with new outputs; it is not written."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT), "PIPEGAP_RESULTS": str(TRIALS)})
    notebook.metadata.pop("language_info", None)  # the version of this machine's Python
    return notebook


def write(path: Path = NOTEBOOK) -> None:
    """Writes the notebook with new outputs."""
    nbformat.write(executed(path), path)
