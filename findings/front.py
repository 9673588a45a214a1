"""What is made of the README's job: the answer and the table of the README, its picture, and the
notebook docs/gaps.ipynb.

Between `<!-- answer -->` or `<!-- table -->` and `<!-- end -->` the README has what the functions
here return. Every other page is a record, which nothing makes anew.
"""

import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
from nbclient import NotebookClient

from pipegap.analysis import gaps, load
from pipegap.analysis.advice.advise import advices
from pipegap.analysis.advice.verdict import GO, SHORT, UNDECIDED, Advice, Rival, more_updates
from pipegap.analysis.figures import BY_NAME
from pipegap.analysis.figures.figure import Spec, picture, plot, whole, with_font
from pipegap.analysis.report.answer import MICROBATCHES, STAGES
from pipegap.analysis.statistics.pairs import mean_interval
from pipegap.analysis.statistics.text import gap_table
from pipegap.analysis.table import names
from pipegap.analysis.table.points import FEEDBACK
from pipegap.sweeps.plan.pricing import costs
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.command_line import parse_request
from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.store.files import FileStore

FINDINGS = Path(__file__).parent
ROOT = FINDINGS.parent
README, NOTEBOOK = ROOT / "README.md", ROOT / "docs" / "gaps.ipynb"
JOB, PICTURE = FINDINGS / "main" / "job.csv", FINDINGS / "main" / "final_losses.svg"
LOOK_AHEAD = FINDINGS / "look_ahead_time"
"""The study of runs that look ahead, with the lengths and seeds of the job."""
SYNC_LOOK = "sync_ema_nesterov(look_ahead=0.3)"
DELAY_LOOK = "delay_ema_nesterov(look_ahead=0.3,1)"
AT_SIZE = (
    "At your size: not known yet; [a study of growth](findings/growth/README.md) goes up to 2 "
    "million."
)
SWEEPS = ROOT / "docs" / "sweeps.md"
PRICED = (*(("main", scale) for scale in ("135m", "360m", "2b", "10b")), ("growth", "135m"))
"""Sweeps and scales."""
SHAPE: Mapping[str, Any] = {"stages": STAGES, "microbatches": MICROBATCHES}
"""The pipeline that the answer is for."""


def answer() -> str:
    """The optimizers that may be asynchronous whatever the rival, in bold; a table with what each
    wins over the slowest and the fastest rival in the same time, without and with a look-ahead, and
    what its delay costs after as many updates; and what all this is for, in small print."""
    answers = advices(load(JOB), **SHAPE)
    # Of those that win against every rival: nobody knows which one a reader has.
    wins = [
        advice
        for advice in answers
        if all(rival.decision.word == GO for rival in advice.rivals.values())
    ]
    [arm] = {gap.words for advice in answers if (gap := advice.decided_by)}
    millions = load(JOB)["num_parameters"].max() / 1e6
    optimizers = " or ".join(names.optimizer(advice.optimizer) for advice in wins)
    says = f"yes, with {optimizers} and {arm.removeprefix('delay + ')}" if wins else "not shown"
    # The speed-ups are of the pipeline, and so the same for each optimizer.
    fastest, *_, slowest = sorted(answers[0].rivals.values(), key=lambda rival: rival.speed_up)
    heads = [names.optimizer(advice.optimizer) for advice in answers]
    # Another study trained the same lengths and seeds with a look-ahead.
    trials = load(LOOK_AHEAD / "trials_tiny.csv")
    by_optimizer = {advice.optimizer: advice for advice in advices(as_plain(trials), **SHAPE)}
    looking = [by_optimizer[advice.optimizer] for advice in answers]
    rows = [[f"2BW with {arm.removeprefix('delay + ')}: loss minus sync's", *heads]]
    for rival, place in ((slowest, ""), (fastest, ", the fastest schedule")):
        words = f"in the time of {rival.label}{place}: {more_updates(rival)}"
        page = f"findings/{LOOK_AHEAD.name}/README.md"
        rows.append([words, *_cells(answers, rival)])
        rows.append([f"the same, both with [a look-ahead]({page})", *_cells(looking, rival)])
    gaps_of_answers = [advice.decided_by for advice in answers]
    cells = (
        _mean(gap.gap, *gap.interval) if gap else _mean(nan, nan, nan) for gap in gaps_of_answers
    )
    rows.append(["after as many updates", *cells])
    rows.append(["for scale: what the look-ahead gives sync", *_look_ahead(trials, answers)])
    headline = f"**On a {millions:.1f}-million-parameter model: {says}.** {AT_SIZE}"
    return names.minus("\n\n".join([headline, markdown(rows), _small_print()]))


def _cells(answers: Sequence[Advice], rival: Rival) -> Iterator[str]:
    """The difference in the time of a rival, and the verdict."""
    for advice in answers:
        of_rival = advice.rivals[rival.name]
        at, decision = of_rival.same_time, of_rival.decision
        difference = _mean(at.gap, *at.interval) if at else ""
        yield f"{difference} **{'open' if decision.short == SHORT[UNDECIDED] else decision.short}**"


def _mean(mean: float, low: float, high: float) -> str:
    # What rounds to 0 has no sign.
    return re.sub(r"[+-]0\.000", "0.000", f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]")


def as_plain(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials that look ahead, with arms named as if they did not: those that are delayed are
    then compared with the synchronous one that looks ahead, too."""
    arm = trials["arm"].map({SYNC_LOOK: "sync", DELAY_LOOK: "delay_ef"})
    family = trials["family"].mask(arm == "delay_ef", FEEDBACK)
    return trials.assign(arm=arm, base_arm=arm, family=family)[arm.notna()]


def _look_ahead(trials: pd.DataFrame, answers: Sequence[Advice]) -> Iterator[str]:
    """The loss of sync with EMA-Nesterov minus sync's."""
    losses = trials.pivot_table("final_val_loss", ["optimizer", "seed"], "arm")
    differences = losses[SYNC_LOOK] - losses["sync"]
    for advice in answers:
        values = differences[advice.optimizer].dropna().to_numpy()
        yield _mean(float(values.mean()), *mean_interval(values))


def _small_print() -> str:
    """What the numbers are of."""
    trials = load(JOB)
    losses = gaps(trials)
    sync = trials[trials["arm"] == "sync"]
    text = (
        f"Nats per byte [95 %], n = {losses['n'].max()}; go: shown to end lower; must be measured: "
        f"not shown against a schedule that only a simulation makes so fast. "
        f"{sync['num_updates'].max():,} updates of sync on 5 MB of Wikipedia; time simulated "
        f"for {STAGES} stages and {MICROBATCHES} microbatches; 2BW with Error Feedback takes two "
        f"more sets of weights. The look-ahead is EMA-Nesterov, by 0.3. On another kind of "
        f"processor no loss is the same to the bit: single trials differ by up to 1e-7 (Muon), "
        f"9e-4 (AdamW) and 2.6e-3 (SOAP)."
    )
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def table() -> str:
    """The table of gaps as a report prints it."""
    return gap_table(gaps(load(JOB))).strip()


def front_page(text: str) -> str:
    """The text of the README with its two parts made again."""
    return filled(text, {"answer": answer(), "table": table()})


def gpu_hours(priced: Sequence[tuple[str, str]] = PRICED) -> str:
    """What sweeps take at scales of the paper, by assumed rates, as a table."""
    rows = []
    for sweep, scale in priced:
        store = ROOT / "nowhere"  # without trials, which would be left out of the price
        request = parse_request([f"sweep={sweep}", f"scale={scale}", f"results={store}"])
        sweep_round = Round.first(request, FileStore(request.results))
        [cost] = costs(sweep_round, sweep_round.todo)
        num_trials = len(sweep_round.todo)
        hours = [f"{seconds / 3600:,.0f}" for seconds in (cost.total, cost.total / num_trials)]
        rows.append((f"`{sweep}`", f"`{scale}`", str(num_trials), *hours))
    heads = ("sweep", "scale", "trials", "GPU-hours", "of a trial, on the mean")
    return markdown([heads, *rows])


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table, its heads first."""
    heads, *other_rows = rows
    lines = (heads, ["---"] * len(heads), *other_rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def filled(text: str, parts: Mapping[str, str]) -> str:
    """The text with what stands between the marks of each part replaced."""
    for part, content in parts.items():
        head, start, rest_of_text = text.partition(f"<!-- {part} -->\n")
        _, end, tail = rest_of_text.partition("\n<!-- end -->")
        text = f"{head}{start}{content}{end}{tail}"
    return text


def pictured() -> Spec:
    """The specification of the README's picture."""
    trials, figure = load(JOB), BY_NAME["final_losses"]
    return whole(plot(figure, figure.data(trials, gaps(trials))))


def executed() -> nbformat.NotebookNode:
    """The notebook with new outputs on the trials of the README; it is not written."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(NOTEBOOK.parent)}}
    # `timeout`: seconds of a cell. Times would make each run another file.
    client = NotebookClient(notebook, timeout=300, record_timing=False, resources=place)
    environment = {"PYTHONPATH": str(ROOT), "PIPEGAP_RESULTS": str(JOB)}
    client.execute(env={**os.environ, **environment})  # on the job, whatever `results` is here
    notebook.metadata.pop("language_info", None)  # the version of this machine's Python
    return notebook


def write() -> None:
    """Writes the README, the prices of docs/sweeps.md, the picture and the notebook anew."""
    write_atomically(README, front_page(README.read_text()).encode())
    write_atomically(SWEEPS, filled(SWEEPS.read_text(), {"hours": gpu_hours()}).encode())
    write_atomically(PICTURE, with_font(picture(pictured())).encode())
    nbformat.write(executed(), NOTEBOOK)
