"""Pages with parts that are made, each between a marker and `<!-- end -->`, their figures, and the
notebook docs/gaps.ipynb.

A marker is a call: `<!-- verdicts sweep=momentum scale=tiny -->` calls the function `verdicts` of
CALLS with these words. A table stays as it is; a sentence is wrapped in lines of WIDTH.
"""

import inspect
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

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
from findings.code.calls import CALLS
from findings.code.cells import Markdown
from findings.code.published import CONTENT, FINDINGS, ROOT, scores, view
from trainer.base.atomic import write_atomically
from trainer.base.cli import one_of
from trainer.base.errors import BadInput

PARTS = re.compile(r"<!-- (?!end -->)(.*?) -->\n(.*?)(?=<!-- )(<!-- end -->)?", re.DOTALL)
WIDTH = 120
"""Columns of the prose."""
LONGEST, SEEDS_OF_LONGEST = (12_800, 128, 108_928), 5
"""Updates, tokens per update and parameters of the sweep `ladder_top`, and its seeds."""
NOTEBOOK = ROOT / "docs" / "gaps.ipynb"
NOTEBOOK_TRIALS = FINDINGS / "main" / "job.csv"
TIMEOUT = 300
"""Seconds that a cell of the notebook may take."""


def pages() -> list[Path]:
    """The pages with parts that are made."""
    docs = [ROOT / "docs" / f"{page}.md" for page in ("advise", "theory", "forecast", "evaluation")]
    return [ROOT / "README.md", *docs, *sorted(FINDINGS.rglob("*.md"))]


def made(text: str, page: Path) -> str:
    """The text of a page with every part made again. Raises BadInput, which names the page, for a
    marker that is no call, or that has no end."""

    def part(place: re.Match[str]) -> str:
        marker, _, end = place.groups()
        try:
            if end is None:
                raise BadInput("marker", marker, "must be followed by <!-- end -->")
            content = call(marker)
        except BadInput as error:
            raise BadInput(os.path.relpath(page, ROOT), marker, str(error)) from None
        linked = _linked(content, page)
        shown = linked if isinstance(content, Markdown) else wrapped(linked)
        return f"<!-- {marker} -->\n{shown}\n{end}"

    return PARTS.sub(part, f"{text}<!-- ").removesuffix("<!-- ")


def call(marker: str) -> str:
    """What the call of a marker makes. Raises BadInput for an unknown call or word."""
    name, *words = shlex.split(marker)
    if name not in CALLS:
        raise one_of("call", name, sorted(CALLS))
    pairs = dict(word.partition("=")[::2] for word in words)
    values: dict[str, Any] = {
        key: int(value) if value.isdigit() else value for key, value in pairs.items()
    }
    try:
        inspect.signature(CALLS[name]).bind(**values)
    except TypeError as error:
        raise BadInput("call", name, str(error)) from None
    return CALLS[name](**values)


def _linked(text: str, page: Path) -> str:
    """The text with links into findings/ as seen from the page."""
    return re.sub(
        r"\]\((findings/[^)]+)\)",
        lambda link: f"]({os.path.relpath(ROOT / link[1], page.parent)})",
        text,
    )


def wrapped(text: str) -> str:
    """Each line as a paragraph or a point of a list, in lines of WIDTH."""
    return "\n".join(
        textwrap.fill(
            line,
            WIDTH,
            subsequent_indent=" " * (len(line) - len(line.lstrip(" -"))),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.splitlines()
    )


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


def executed() -> nbformat.NotebookNode:
    """The notebook with new outputs on the trials of the README; it is not written."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(NOTEBOOK.parent)}}
    client = NotebookClient(notebook, timeout=TIMEOUT, record_timing=False, resources=place)
    own = {"PYTHONPATH": str(ROOT), "PIPEGAP_RESULTS": str(NOTEBOOK_TRIALS)}
    client.execute(env={**os.environ, **own})
    notebook.metadata.pop("language_info", None)  # the version of this machine's Python
    return notebook


def write_notebook() -> None:
    """Writes the notebook with new outputs."""
    nbformat.write(executed(), NOTEBOOK)
