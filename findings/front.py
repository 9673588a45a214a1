"""What is made of the README's job: the answer and the table of the README, its picture, and the
notebook docs/gaps.ipynb.

Between `<!-- answer -->` or `<!-- table -->` and `<!-- end -->` the README has what the functions
here return. Every other page is a record, which nothing makes anew.
"""

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from pipegap.analysis import gaps, load
from pipegap.analysis.advice.advise import advices
from pipegap.analysis.advice.verdict import GO, Advice, Rival, heading, more_updates, sentence
from pipegap.analysis.figures import BY_NAME
from pipegap.analysis.figures.figure import Spec, picture, plot, whole, with_font
from pipegap.analysis.report.answer import MICROBATCHES, STAGES
from pipegap.analysis.statistics.text import gap_table
from pipegap.analysis.table.names import minus
from pipegap.analysis.table.names import optimizer as name
from pipegap.sweeps.plan.pricing import costs
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.command_line import parse_request
from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.store.files import FileStore

FINDINGS = Path(__file__).parent
ROOT = FINDINGS.parent
README, NOTEBOOK = ROOT / "README.md", ROOT / "docs" / "gaps.ipynb"
JOB, PICTURE = FINDINGS / "main" / "job.csv", FINDINGS / "main" / "final_losses.svg"
LOOK_AHEAD = FINDINGS / "look_ahead_fair"
SWEEPS = ROOT / "docs" / "sweeps.md"
PRICED = (*(("main", scale) for scale in ("135m", "360m", "2b", "10b")), ("growth", "135m"))
"""Sweeps and scales."""
WIDTH = 120
"""Columns of the prose."""
TIMEOUT = 300
"""Seconds that a cell of the notebook may take."""


def answer() -> str:
    """The optimizers that may be asynchronous whatever the rival, in bold, with what each wins
    over the slowest and the fastest rival in the same time; then a sentence for each other
    optimizer; what all this is for, and what it costs."""
    answers = advices(load(JOB), stages=STAGES, microbatches=MICROBATCHES)
    wins, open_answers = [], []
    for advice in answers:
        if all(rival.decision.word == GO for rival in advice.rivals.values()):
            wins.append(advice)
        else:
            open_answers.append(f"{sentence(advice)}.")
    of_all = [f"Measured on {line}." for line in heading(answers)]
    text = minus(
        " ".join([*_won(wins), *_costs(wins), *_looking_ahead(wins), *of_all, *open_answers])
    )
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _costs(wins: Sequence[Advice]) -> list[str]:
    gaps_of = [gap for advice in wins if (gap := advice.decided_by)]
    if not gaps_of:
        return []
    gap_texts = " or ".join(f"{gap.gap:+.4f}" for gap in gaps_of)
    sets = 1 + max(bool(gap.coefficient) for gap in gaps_of)
    costs = f"it ends {gap_texts} from sync, and it takes {sets} more sets of weights"
    return [f"After as many updates {costs}."]


def _looking_ahead(wins: Sequence[Advice]) -> list[str]:
    """What is left beside a synchronous run that looks ahead, if the delayed one does so too."""
    if not wins:
        return []
    trials = load(LOOK_AHEAD / "trials_tiny.csv")
    losses = trials.pivot_table("final_val_loss", ["optimizer", "seed"], "arm")
    look_ahead_losses = losses["sync_ema_nesterov(look_ahead=0.3)"]
    late = losses["delay_ema_nesterov(look_ahead=0.3,1)"]
    gained, left = (
        " or ".join(f"{pairs[advice.optimizer].mean():+.4f}" for advice in wins)
        for pairs in (look_ahead_losses - losses["sync"], late - look_ahead_losses)
    )
    return [
        f"Sync that looks ahead by EMA-Nesterov ends {gained} from sync; 2BW with the same look "
        f"and Error Feedback ends {left} from that ([study](findings/{LOOK_AHEAD.name}/README.md))."
    ]


def _won(wins: Sequence[Advice]) -> list[str]:
    if not wins:
        return []
    optimizers = " or ".join(name(advice.optimizer) for advice in wins)
    by_speed = sorted(wins[0].rivals.values(), key=lambda rival: rival.speed_up)
    slowest, fastest = by_speed[-1], by_speed[0]
    return [
        f"**Yes, with {optimizers} and Error Feedback: in the time of {slowest.label}, 2BW makes "
        f"{more_updates(slowest)} and its loss ends lower by {_lower(wins, slowest)}; in that of "
        f"{fastest.label}, the strongest rival, {more_updates(fastest)} and lower by "
        f"{_lower(wins, fastest)}.**"
    ]


def _lower(wins: Sequence[Advice], rival: Rival) -> str:
    compared = (advice.rivals[rival.name].same_time for advice in wins)
    return " or ".join(f"{-at.gap:.3f}" for at in compared if at)


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
        store = str(ROOT / "nowhere")
        request = parse_request([f"sweep={sweep}", f"scale={scale}", f"results={store}"])
        sweep_round = Round.first(request, FileStore(request.results))
        [cost] = costs(sweep_round, sweep_round.todo)
        hours = [
            f"{seconds / 3600:,.0f}" for seconds in (cost.total, cost.total / len(sweep_round.todo))
        ]
        rows.append((f"`{sweep}`", f"`{scale}`", str(len(sweep_round.todo)), *hours))
    heads = ("sweep", "scale", "trials", "GPU-hours", "of a trial, on the mean")
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ("---",) * len(heads), *rows))


def filled(text: str, parts: Mapping[str, str]) -> str:
    """The text with what stands between the marks of each part replaced."""
    for part, content in parts.items():
        text_before, start, text_behind = text.partition(f"<!-- {part} -->\n")
        _, end, text_after = text_behind.partition("\n<!-- end -->")
        text = f"{text_before}{start}{content}{end}{text_after}"
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
    environment = {"PYTHONPATH": str(ROOT), "PIPEGAP_RESULTS": str(JOB)}
    client.execute(env={**os.environ, **environment})
    notebook.metadata.pop("language_info", None)  # the version of this machine's Python
    return notebook


def write() -> None:
    """Writes the README, the prices of docs/sweeps.md, the picture and the notebook anew."""
    write_atomically(README, front_page(README.read_text()).encode())
    write_atomically(SWEEPS, filled(SWEEPS.read_text(), {"hours": gpu_hours()}).encode())
    write_atomically(PICTURE, with_font(picture(pictured())).encode())
    nbformat.write(executed(), NOTEBOOK)
