"""The figures of the pages, and what docs/gaps.ipynb shows: drawn from the published trials."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from analysis.figures import BY_NAME
from analysis.figures.figure import Plot, Spec, plot, whole
from analysis.figures.files import picture
from analysis.figures.fonts import with_font
from analysis.figures.forecast import drawn
from analysis.figures.scores import of_scores
from analysis.forecast.answer import answer
from analysis.forecast.ladder import ladders
from analysis.table.names import REPORTED_ARMS
from findings.code.published import CONTENT, FINDINGS, ROOT, scores, view
from trainer.base.atomic import write_atomically

LONGEST, SEEDS_OF_LONGEST = (12_800, 128, 108_928), 5
"""Updates, tokens per update and parameters of the sweep `ladder_top`, and its seeds."""
NOTEBOOK = ROOT / "docs" / "gaps.ipynb"
NOTEBOOK_TRIALS = FINDINGS / "main" / "job.csv"
TIMEOUT = 300
"""Seconds that a cell of the notebook may take."""


def _of_trials(name: str, *views: str) -> Plot:
    shown = view(*views)
    return plot(BY_NAME[name], BY_NAME[name].data(shown.trials, shown.gaps))


def _downstream() -> Plot:
    """The published scores, model by model."""
    rows = scores().assign(setting=lambda rows: rows["model"])
    return plot(BY_NAME["downstream"], of_scores(rows, REPORTED_ARMS))


def _longest() -> Plot:
    """What was foretold of the largest rung of the ladder at `tiny`, and what it said."""
    before, after = (view(name).trials for name in ("rungs", "ladder tiny"))
    answers, rungs = [], []
    for optimizer in ("adamw", "muon"):
        short, long = (
            next(ladder for ladder in ladders(trials, optimizer) if ladder.arm == "delay")
            for trials in (before, after)
        )
        answers.append(answer(short, LONGEST, SEEDS_OF_LONGEST))
        rungs += [rung for rung in long.rungs if rung.settings == LONGEST]
    return drawn(answers, rungs)


PICTURES: Mapping[str, Callable[[], Plot]] = {
    **{name: partial(_of_trials, *words) for name, words in CONTENT["pictures"].items()},
    "downstream/downstream": _downstream,
    "forecasts/forecast": _longest,
}
"""SVG in findings/ → what draws it."""


def pictured(name: str) -> Spec:
    """The specification of one of PICTURES."""
    return whole(PICTURES[name]())


def write_pictures() -> None:
    """Writes all of PICTURES."""
    for name in PICTURES:
        svg = with_font(picture(pictured(name)))
        write_atomically(FINDINGS / f"{name}.svg", svg.encode())


def executed(path: Path = NOTEBOOK) -> nbformat.NotebookNode:
    """The notebook with new outputs on the trials of the README; it is not written."""
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=TIMEOUT, record_timing=False, resources=place)
    own = {"PYTHONPATH": str(ROOT), "PIPEGAP_RESULTS": str(NOTEBOOK_TRIALS)}
    client.execute(env={**os.environ, **own})
    notebook.metadata.pop("language_info", None)  # the version of this machine's Python
    return notebook


def write_notebook() -> None:
    """Writes the notebook with new outputs."""
    nbformat.write(executed(), NOTEBOOK)
