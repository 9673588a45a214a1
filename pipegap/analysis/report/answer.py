"""The answer that a report begins with, and what a sweep asks of its report."""

import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pandas as pd

from pipegap.analysis.advice.advise import advices, handover, matrix
from pipegap.analysis.advice.verdict import (
    Advice,
    cost,
    heading,
    headline,
    listed,
    ranking,
    sentence,
)
from pipegap.analysis.report.facts import command
from pipegap.analysis.statistics.gaps import best
from pipegap.analysis.statistics.pairs import ends_text
from pipegap.analysis.statistics.text import failed_lines
from pipegap.analysis.table import names
from pipegap.analysis.table.points import by_loss
from pipegap.analysis.table.text import hanging, terminal_width
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.folder.wellformed import LIST_FAILED
from pipegap.trainer.store.records import Record

# The answer that a report begins with: may each optimizer be trained with a delay?

STAGES, MICROBATCHES = 4, 8
"""The pipeline that the answer is for; a command beside it asks about another one."""
BY_HAND = (
    "trainings with and without the delay decide, of the same seeds, two or more, that differ in "
    "nothing else; longer delayed ones tell what the delay costs"
)
"""What decides for trials that no command of ours can make, and of which there are no pairs."""


class AnswerRow(NamedTuple):
    """One optimizer: a cell per synchronous pipeline, the whole in a sentence, and what settles it.

    A cell is the row of `Rival`, with the difference and its `interval` in words, which are empty
    without runs to compare. `command` runs the trials that would decide; it is empty if all is
    decided, or not known.
    """

    optimizer: str
    cells: Sequence[Mapping[str, Any]]
    sentence: str
    command: str


class StoreAnswer(NamedTuple):
    """One row per optimizer that was trained with a delay.

    `place` is the part of the report that it is for. `next_step` says what to run first; it is
    empty where no sweep is known to continue.
    """

    place: str
    heads: Sequence[str]
    """What it is for, and what not."""
    rivals: Sequence[str]
    runs: Sequence[str]
    """For each rival which runs are compared, in words, where they are the same in all rows; else
    empty, and the cells say it."""
    seeds: str
    """`n = 5`, where all cells have as many; else empty, and the cells say it."""
    rows: Sequence[AnswerRow]
    ranking: Sequence[str]
    """The losses of the optimizers in the same time, in a line; none where they cannot be
    compared."""
    text: str
    """The table of the verdicts and the sentences, to be printed."""
    handover: str
    """The lines of code that train so; empty if nothing says go."""
    question: str
    """The command that asks about another pipeline."""
    next_step: str
    by_hand: str
    """What decides where no command of ours can make the trials."""
    is_compared: bool
    """Whether some optimizer has pairs that might decide, whatever they say."""
    is_decided: bool
    failed: Sequence[str] = ()
    """How many of its trials failed and why, a line per reason."""
    diverged: Sequence[str] = ()
    """What was left out because it diverged, where no verdict says so."""

    @property
    def printed(self) -> str:
        """The text and the code, or what to run where nothing is decided."""
        if not self.is_decided:
            first = f"nothing is decided yet: {self.next_step or self.by_hand}"
            return "\n".join([first, *self.diverged])
        return "\n".join(filter(None, [self.text, self.handover]))


def answer(
    place: str,
    trials: pd.DataFrame,
    records: Sequence[Record],
    sweeps_left: pd.DataFrame,
    store: str,
) -> StoreAnswer:
    """Return the answer of these trials.

    `sweeps_left` is the table of `missing`. `store` is the word of a command that names the store.
    """
    answers = _advices(trials, records)
    rivals = [rival.label for rival in answers[0].rivals.values()] if answers else []
    rows = [_row(advice, store) for advice in answers]
    heads = [names.minus(line) for line in heading(answers)]
    text, width = "", terminal_width()
    if answers:
        sentences = [row.sentence for row in rows]
        lines = [*heads, matrix(answers, width), *ranking(answers), *sentences]
        text = hanging("\n".join(lines), width)
    words = [f"stages={STAGES}", f"microbatches={MICROBATCHES}"]
    is_decided = any(advice.num_decided for advice in answers)
    diverged = [
        f"{names.optimizer(advice.optimizer)}: left out is what diverged, {listed(advice.left_out)}"
        for advice in answers
        if advice.left_out and not is_decided
    ]
    return StoreAnswer(
        place=place,
        heads=heads,
        rivals=rivals,
        runs=[_shared(row.cells[at]["evidence"] for row in rows) for at in range(len(rivals))],
        seeds=_shared(f"n = {cell['n']}" for row in rows for cell in row.cells if cell["n"]),
        rows=rows,
        ranking=[*ranking(answers)],
        text=text,
        handover=handover(answers),
        question=shlex.join(["pipegap", "advise", *words, store]),
        next_step=_next_step(answers, rows, sweeps_left, store, is_empty=trials.empty),
        by_hand=_by_hand(answers),
        is_compared=any(advice.is_compared for advice in answers),
        is_decided=is_decided,
        failed=[*failed_lines(trials)],
        diverged=diverged,
    )


def _shared(words: Iterable[str]) -> str:
    """Return the words that all have which have any; empty where they differ."""
    several = {*filter(None, words)}
    return several.pop() if len(several) == 1 else ""


def _advices(trials: pd.DataFrame, records: Sequence[Record]) -> list[Advice]:
    """Return the advice for each optimizer of which there can be any, by loss."""
    answers: list[Advice] = []
    for optimizer in by_loss(trials):
        of_optimizer = trials[trials["optimizer"] == optimizer]
        # A remark of the report says each warning, and why trials cannot be compared.
        with warnings.catch_warnings(action="ignore", category=UserWarning), suppress(BadInput):
            shape = {"stages": STAGES, "microbatches": MICROBATCHES}
            answers += advices(of_optimizer, **shape, records=records)
    return answers


def _row(advice: Advice, store: str) -> AnswerRow:
    cells = []
    for row in (rival.row for rival in advice.rivals.values()):
        difference = names.minus(f"{row['difference']:+.4f}") if row["n"] else ""
        interval = names.minus(ends_text(row["low"], row["high"], "+.4f").strip())
        cells.append({**row, "difference": difference, "interval": interval})
    words = shlex.split(advice.command)[2:]  # without `pipegap sweep`
    settle = command(words, store) if words else ""
    name = names.optimizer(advice.optimizer)
    sentences = "; ".join(filter(None, [sentence(advice), cost(advice)]))
    return AnswerRow(name, cells, names.minus(sentences), settle)


def _next_step(
    answers: Sequence[Advice],
    rows: Sequence[AnswerRow],
    sweeps_left: pd.DataFrame,
    store: str,
    *,
    is_empty: bool,
) -> str:
    """Return the command of the first sweep that is begun and not done, else of a list of what
    failed, else of the first advice, else of the sweep `main` where there are no trials. No more
    trials of a scale whose runs are too short decide: then that of the advice comes first."""
    counts = sweeps_left[["missing", "failed"]].fillna(0)  # of a sweep that never ran
    of_sweeps = [*sweeps_left.loc[counts["missing"] > counts["failed"], "command"]]
    of_sweeps += [shlex.join([*LIST_FAILED, store])] if (counts["failed"] > 0).any() else []
    of_advices = [row.command for row in rows if row.command]
    too_short = any("scale" in advice.verdict.settle for advice in answers)
    commands = [*of_advices, *of_sweeps] if too_short else [*of_sweeps, *of_advices]
    commands += [command(["sweep=main"], store)] if is_empty else []
    return commands[0] if commands else ""


def _by_hand(answers: Sequence[Advice]) -> str:
    """What the first advice misses that knows it, else what any advice needs."""
    for advice in answers:
        if "scale" in advice.verdict.settle:
            return advice.verdict.why
        if advice.settings:
            optimizer = names.optimizer(advice.optimizer)
            more = f"more of these trainings decide for {optimizer} against {advice.rival}"
            return f"{more}: {advice.settings}"
    return BY_HAND


# What a sweep asks of its report: which arm of a search is best, and what it advises.


class Pipeline(Protocol):
    """The pipeline that a sweep asks about."""

    @property
    def stages(self) -> int:
        """p"""

    @property
    def microbatches(self) -> int:
        """m"""


class Asked(NamedTuple):
    """The questions of a sweep."""

    pipeline: Pipeline | None
    """Of its advice, if it asks for any."""
    seeds: Sequence[int] | None
    """By which its search chose settings, if it has a search."""


def answers(
    question: Asked, trials: pd.DataFrame, records: Sequence[Record], store: str, out: Path
) -> Iterator[str]:
    """Yield the answers in lines: `trials` are those of the sweep, `records` those of the `store`.

    Writes best.csv of a search to `out`. Nothing without a question, or a finished trial.
    """
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # remarks of the report
        if question.seeds is not None:
            yield from _best(trials, question.seeds, out)
        if question.pipeline is not None:
            yield from _advice(trials, question.pipeline, records, store)


def _best(trials: pd.DataFrame, seeds: Sequence[int], out: Path) -> Iterator[str]:
    table = best(trials, seeds)
    table.to_csv(out / "best.csv", index=False)
    for row in table[table["n"] > 0].to_dict("records"):
        name = " ".join(filter(None, [row["optimizer"], row["task"]]))
        yield (
            f"{name}: {row['arm']} at its best ({row['setting']}) minus sync at its own "
            f"({row['setting_sync']}): {row['gap']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}], "
            f"n {row['n']}"
        )


def _advice(
    trials: pd.DataFrame, pipeline: Pipeline, records: Sequence[Record], store: str
) -> Iterator[str]:
    """Yield the verdicts for each optimizer, and the command that shows what they rest on."""
    shape = {"stages": pipeline.stages, "microbatches": pipeline.microbatches}
    if answers := advices(trials, **shape, records=records):
        words = [*(f"{key}={value}" for key, value in shape.items()), f"results={store}"]
        width = terminal_width()
        lines = [*heading(answers), matrix(answers, width), *ranking(answers)]
        yield hanging("\n".join([*lines, *map(headline, answers)]), width)
        yield f"what this rests on: pipegap advise {shlex.join(words)}"
