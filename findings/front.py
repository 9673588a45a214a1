"""What is made of the README's job: the answer and the table of the README, its picture, and the
notebook docs/gaps.ipynb.

Between `<!-- answer -->` or `<!-- table -->` and `<!-- end -->` the README has what the functions
here return. Every other page is a record, which nothing makes anew.
"""

import os
import textwrap
from collections.abc import Sequence
from math import floor
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from pipegap.analysis import gaps, load
from pipegap.analysis.advice.advice import sentence
from pipegap.analysis.advice.advise import advices
from pipegap.analysis.advice.verdict import GO, Rival
from pipegap.analysis.figures import BY_NAME
from pipegap.analysis.figures.figure import Spec, plot, whole
from pipegap.analysis.figures.files import picture, with_font
from pipegap.analysis.report.answer import MICROBATCHES, STAGES
from pipegap.analysis.statistics.text import gap_table
from pipegap.analysis.table.names import minus
from pipegap.analysis.table.names import optimizer as name
from pipegap.trainer.base.atomic import write_atomically

FINDINGS = Path(__file__).parent
ROOT = FINDINGS.parent
README, NOTEBOOK = ROOT / "README.md", ROOT / "docs" / "gaps.ipynb"
JOB, PICTURE = FINDINGS / "main" / "job.csv", FINDINGS / "main" / "final_losses.svg"
WIDTH = 120
"""Columns of the prose."""
TIMEOUT = 300
"""Seconds that a cell of the notebook may take."""


def answer() -> str:
    """The optimizers that may be asynchronous whatever the rival, in bold, with what each wins
    over the slowest rival in the same time; then a sentence for each other optimizer."""
    wins, others = [], []
    for advice in advices(load(JOB), stages=STAGES, microbatches=MICROBATCHES):
        rivals = [*advice.rivals.values()]
        slowest = max(rivals, key=lambda rival: rival.speed_up)
        if slowest.same_time and all(rival.decision.word == GO for rival in rivals):
            wins.append((name(advice.optimizer), slowest, slowest.same_time.gap))
        else:
            others.append(f"{sentence(advice)}.")
    said = minus(" ".join([*_won(wins), *others]))
    return textwrap.fill(said, WIDTH, break_long_words=False, break_on_hyphens=False)


def _won(wins: Sequence[tuple[str, Rival, float]]) -> list[str]:
    if not wins:
        return []
    optimizers, [rival, *_], gaps = zip(*wins, strict=True)
    more = f"{floor(100 * (rival.speed_up - 1) + 1e-6)} %"
    lower = " or ".join(f"{-gap:.3f}" for gap in gaps)
    return [
        f"**Yes, with {' or '.join(optimizers)} and Error Feedback: in the time of {rival.name}, "
        f"2BW makes {more} more updates and its loss ends lower by {lower}.**"
    ]


def table() -> str:
    """The table of gaps as a report prints it."""
    return gap_table(gaps(load(JOB))).strip()


def front_page(text: str) -> str:
    """The text of the README with its two parts made again."""
    for part, made in (("answer", answer()), ("table", table())):
        before, start, rest = text.partition(f"<!-- {part} -->\n")
        _, end, after = rest.partition("\n<!-- end -->")
        text = f"{before}{start}{made}{end}{after}"
    return text


def pictured() -> Spec:
    """The specification of the README's picture."""
    trials, figure = load(JOB), BY_NAME["final_losses"]
    return whole(plot(figure, figure.data(trials, gaps(trials))))


def executed() -> nbformat.NotebookNode:
    """The notebook with new outputs on the trials of the README; it is not written."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(NOTEBOOK.parent)}}
    client = NotebookClient(notebook, timeout=TIMEOUT, record_timing=False, resources=place)
    own = {"PYTHONPATH": str(ROOT), "PIPEGAP_RESULTS": str(JOB)}
    client.execute(env={**os.environ, **own})
    notebook.metadata.pop("language_info", None)  # the version of this machine's Python
    return notebook


def write() -> None:
    """Writes the README, its picture and the notebook anew."""
    write_atomically(README, front_page(README.read_text()).encode())
    write_atomically(PICTURE, with_font(picture(pictured())).encode())
    nbformat.write(executed(), NOTEBOOK)
