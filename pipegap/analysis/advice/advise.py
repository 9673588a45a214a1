"""May this optimizer train in this pipeline with a delay? The verdict, from a store of trials; for
all of its optimizers in rows; and the lines of code that put 2BW in the place of 1F1B.
"""

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isnan
from typing import Any

import pandas as pd
import yaml

from pipegap.analysis.advice.evidence import Evidence, Gap, evidence, nearest_length
from pipegap.analysis.advice.speed import equal_stages, fastest
from pipegap.analysis.advice.timing import Timing, timing
from pipegap.analysis.advice.verdict import (
    BY_UPDATES,
    GO,
    STAY,
    Advice,
    Decision,
    Rival,
    candidates,
    decide,
    diverged,
    must_be_measured,
    no_faster,
    recommended,
    without_candidate,
)
from pipegap.analysis.statistics.gaps import gaps
from pipegap.analysis.table import names
from pipegap.analysis.table.points import FEEDBACK, PLAIN, by_loss
from pipegap.analysis.table.text import fitted
from pipegap.trainer.base.cli import duration
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CONF
from pipegap.trainer.store.records import Record

MOST = 16_384
"""Stages times microbatches: simulating more takes minutes and changes nothing."""
OF_ONE_SWEEP = (
    *("sweep", "scale", "seeds", "grid", "tune", "search", "advice"),
    *("dry_run", "tracking"),
)
"""Words of a command line, or what they begin with, that say nothing of its trials' setting."""


def advise(
    df: pd.DataFrame,
    *,
    optimizer: str,
    stages: int,
    microbatches: int,
    updates: int | None = None,
    records: Sequence[Record] = (),
    **times: Any,
) -> Advice:
    """The advice for one optimizer and pipeline, from `load`'s table.

    `updates`: how long sync trains; by default the length whose runs come nearest to the time of
    the fastest rival over which 2BW gains (`evidence.nearest_length`), else the longest. `records`:
    those of the store, from which the advice learns how to run more of its trials. `times`:
    arguments of `timing.timing`: `costs`, times of a microbatch on each stage, by default
    `speed.equal_stages`; `activations`, of how many microbatches a rank may keep activations in the
    synchronous pipeline, by default as many as with 2BW; `chunks`, how many parts of the model a
    rank may have; `measured`, times of a step of any rival by name, `two_steps`, those of steps of
    two numbers of microbatches (`speed.TwoSteps`); `own_times`, times of 2BW. The rule is
    `verdict.decide`, against each rival by itself.

    Raises BadInput for an optimizer or a length without trials, and for a pipeline that cannot be;
    warns and raises as `gaps` does.
    """
    _check(stages, microbatches)
    timed = timing(num_microbatches=microbatches, **{"costs": equal_stages(stages)} | times)
    rival = fastest(timed.rivals, timed.most)
    trials = _trials(df, optimizer)
    longest = trials["num_updates"].astype(float).max()
    by_length = _at_length(evidence(trials, gaps(trials), _newest(trials, records)), updates)
    answer = answered(by_length, longest, timed, rival)
    return Advice(
        optimizer,
        stages,
        microbatches,
        timed.costs,
        (*timed.limits, *timed.shares),
        most_activations=timed.most,
        rival=rival,
        **answer,
        command=_command(optimizer, answer["evidence"], answer["gap"], answer["verdict"], records),
        price=_price(answer["evidence"], answer["verdict"], trials),
    )


def answered(
    by_length: Sequence[Evidence], longest: float, timed: Timing, rival: str
) -> dict[str, Any]:
    """The fields of an advice that depend on losses, at the one length of training that counts.

    `by_length`: the evidence of each length, longest first, or none; `longest`: the most updates of
    a trial.
    """
    if not by_length:
        return _answer(None, longest, timed, rival)
    gains = {name: ratio for name, ratio in timed.ratios.items() if no_faster(ratio) is None}
    if not gains:
        return _answer(by_length[0], longest, timed, rival)
    # The rival itself if 2BW gains over it: False sorts before True.
    fastest_beaten = min(gains, key=lambda name: (name != rival, gains[name].value))
    at_length = nearest_length(by_length, *gains[fastest_beaten].ends)
    return _answer(at_length, longest, timed, rival)


def _answer(evidence: Evidence | None, longest: float, timed: Timing, rival: str) -> dict[str, Any]:
    """The fields of an advice that depend on one length of training."""
    ratios = timed.ratios
    simulated = [at.value for name, at in ratios.items() if name not in timed.measured]
    # Of every rival that 2BW may beat: an arm is a candidate for all rivals or for none.
    ends = [end for at in ratios.values() for end in at.ends if at.ends[1] > 1]
    gaps_of_candidates = candidates(evidence, ends) if evidence is not None else []
    arms = [gap.arm for gap in gaps_of_candidates]
    rivals = {}
    for name, at in timed.rivals.items():
        if evidence is not None and arms:
            # A sweep trains one longer run, which must serve every rival.
            largest = max([*simulated, ratios[name].value])
            decision, same_time = decide(evidence, arms, ratios[name], largest)
        else:
            decision = no_faster(ratios[name]) or without_candidate(evidence, ends, longest)
            same_time = None
        value, *interval = ratios[name]
        rivals[name] = Rival(
            *(name, at.num_chunks, value, interval, timed.is_measured(name)),
            *(at.activations, at.fits(timed.most), decision, same_time),
        )
    rivals = must_be_measured(rivals, {name for name, at in timed.rivals.items() if at.is_plain})
    left_out: list[str] = []
    if evidence is not None and arms:  # without a candidate, what diverged decides
        for gap in evidence.gaps:
            left_out += diverged(evidence, gap, ends) if gap.arm not in arms else []
    return {
        "evidence": evidence,
        "gap": recommended(gaps_of_candidates),
        "rivals": rivals,
        "verdict": rivals[rival].decision,
        "left_out": tuple(left_out),
    }


def _check(stages: int, microbatches: int) -> None:
    """Raises BadInput for a pipeline that 2BW cannot have, or that takes long to simulate."""
    for key, value in (("stages", stages), ("microbatches", microbatches)):
        if value < 1:
            raise BadInput(key, value, "must be 1 or more")
    if microbatches < stages - 1:
        allowed = f"2BW needs at least stages - 1 = {stages - 1} ({stages} or more recommended)"
        raise BadInput("microbatches", microbatches, allowed)
    if stages * microbatches > MOST:
        raise BadInput("microbatches", microbatches, f"must be {MOST // stages} at most")


def _newest(trials: pd.DataFrame, records: Sequence[Record]) -> Collection[str]:
    """The trials of the sweep that was the last to finish one of these; empty without records."""
    finished = trials.set_index("trial_id")["finished_at"].dropna()
    ends = [finished[finished.index.isin([*record.trials])] for record in records]
    ends = [times for times in ends if len(times)]
    return max(ends, key=lambda times: times.max()).index if ends else ()


def _trials(df: pd.DataFrame, optimizer: str) -> pd.DataFrame:
    """The rows of an optimizer; raises BadInput if there are none."""
    optimizers = sorted({*df["optimizer"].dropna()})
    if optimizer not in optimizers:
        names = ", ".join(optimizers) or "none: pipegap sweep runs some"
        allowed = f"must be one that there are trials of ({names})"
        raise BadInput("optimizer", optimizer, allowed)
    return df[df["optimizer"] == optimizer]


def _at_length(by_length: list[Evidence], updates: int | None) -> list[Evidence]:
    """The evidence of one length of training, or of all of them; raises BadInput without any."""
    if updates is None or not by_length:
        return by_length
    matching = [evidence for evidence in by_length if evidence.updates == updates]
    if not matching:
        lengths = ", ".join(str(evidence.updates) for evidence in by_length)
        raise BadInput("updates", updates, f"must be a length that there are gaps at ({lengths})")
    return matching


def _command(
    optimizer: str,
    evidence: Evidence | None,
    gap: Gap | None,
    decision: Decision,
    records: Sequence[Record],
) -> str:
    """A sweep at the scale, and with the words, of the one that ran the trials of `evidence`.

    Without evidence the first of the `records` counts. Empty if there is nothing to settle, or if
    no record has these trials: then nobody knows how to make more of them.
    """
    ids = None if evidence is None else {*evidence.trials}
    record = next((record for record in records if ids is None or ids & {*record.trials}), None)
    if record is None or not decision.settle:
        return ""
    anew = "scale" in decision.settle  # where nothing of this one's setting holds
    # The sweep `main` tries the coefficients 0 and 1 of Error Feedback.
    is_of_main = anew or gap is None or gap.coefficient in (0, 1)
    sweep = "main" if is_of_main else "coefficient"
    # Later words replace earlier ones: this command's, then the record's, then what settles.
    words: dict[str, object] = {"sweep": sweep, "scale": record.scale}
    words |= {"grid.optimizer": f"[{optimizer}]"}
    for key, _, value in (word.partition("=") for word in record.words):
        group = key.split(".")[0]
        if group in ("code", "data") if anew else group not in OF_ONE_SWEEP:
            words[key] = value
    if anew:
        words |= decision.settle
        return _as_command(words)
    if evidence is not None:
        words |= {key: "null" if value is None else value for key, value in evidence.keys.items()}
        if record.sweep != sweep and not {"num_updates", "grid.num_updates"} & {*decision.settle}:
            words |= {"num_updates": evidence.updates, **BY_UPDATES}  # not those of another sweep
    return _as_command({**words, **_that_decide(sweep, evidence, decision), "advice": "null"})


def _that_decide(sweep: str, evidence: Evidence | None, decision: Decision) -> dict[str, object]:
    """The words that settle a decision, of the arms and lengths alone that would decide it."""
    arms = yaml.safe_load((CONF / "sweep" / f"{sweep}.yaml").read_text("utf-8"))["arms"]
    if evidence is None or not decision.runs or not {*decision.runs} <= {*arms}:
        return {**decision.settle}
    words: dict[str, object] = {"num_updates": decision.runs["sync"], **BY_UPDATES}
    for arm, overrides in arms.items():
        if arm != "sync":
            updates = decision.runs.get(arm)
            of_arm = ",".join([*overrides, f"num_updates={updates}"])
            words[f"arms.{arm}"] = f"[{of_arm}]" if updates else "null"
    return words | {"seeds": _seeds_that_decide(evidence, decision)}


def _seeds_that_decide(evidence: Evidence, decision: Decision) -> list[int]:
    seeds = (seed for seed, of in evidence.finals["sync"].items() if evidence.updates in of)
    return sorted({*decision.settle.get("seeds", seeds)})


def _price(evidence: Evidence | None, decision: Decision, trials: pd.DataFrame) -> str:
    """How many trials would settle a decision that the store does not have, and how long they take
    by the time of those that it has; empty if it is decided, or whole sweeps are asked for."""
    if evidence is None or not decision.runs:
        return ""
    done = trials[trials["trial_id"].isin(evidence.trials)]
    seconds = float((done["wall_seconds"] / done["num_updates"]).astype(float).median())
    missing = [
        updates
        for arm, updates in decision.runs.items()
        for seed in _seeds_that_decide(evidence, decision)
        if updates not in evidence.finals[arm].get(seed, {})
    ]
    time = "" if isnan(seconds) else f", {duration(seconds * sum(missing))} one after another"
    return f"{len(missing)} trials{time}"


def _as_command(words: Mapping[str, object]) -> str:
    # Lists are printed with spaces, which a shell would ask to quote.
    option_words = (f"{key}={value}".replace(" ", "") for key, value in words.items())
    return f"pipegap sweep {shlex.join(option_words)}"


ROW = {
    "optimizer": "string",
    "rival": "string",
    "speedup": "float64",
    "verdict": "string",
    "difference": "float64",
    "low": "float64",
    "high": "float64",
    "n": "Int64",
    "evidence": "string",
}
"""Columns and their dtypes. `rival`: the synchronous pipeline; `speedup`: batches of 2BW in the
time of one of the rival; `verdict`: go, stay or not enough data; `difference`: loss of the delayed
run minus sync's in the same time, in nats per token, with its 95 % interval from `low` to `high`
over `n` seeds; `evidence`: the runs that are compared."""
CODE = """
def update(): schedule.clip_grad_norm_(max_norm); optimizer.step(); scheduler.step()
schedule = pipegap.Schedule2BW(stage, {microbatches}, loss_fn, update=update, error_feedback={by:g})
with schedule.drained(): evaluate(); save()  # between batches, wherever you do so
"""


def advices(trials: pd.DataFrame, **question: Any) -> list[Advice]:
    """Return the advice for each optimizer that was trained with a delay, the one of the lowest
    loss first (`points.by_loss`).

    `trials`: `load`'s table; `question`: the other arguments of `advise`, which says what is
    raised.
    """
    delayed = trials.loc[trials["family"].isin([PLAIN, FEEDBACK]), "optimizer"]
    optimizers = [name for name in by_loss(trials) if name in {*delayed}]
    return [advise(trials, optimizer=name, **question) for name in optimizers]


def rows(answers: Iterable[Advice]) -> pd.DataFrame:
    """Return one row per advice and rival, in their order; columns: ROW."""
    table = [
        {"optimizer": answer.optimizer, **rival.row}
        for answer in answers
        for rival in answer.rivals.values()
    ]
    return pd.DataFrame(table, columns=[*ROW]).astype(ROW)


def verdict_rows(trials: pd.DataFrame, **question: Any) -> pd.DataFrame:
    """Return `rows` of the `advices` for all optimizers: a call with `trials`, `stages` and
    `microbatches` is enough."""
    return rows(advices(trials, **question))


def matrix(answers: Sequence[Advice], width: int | None = None) -> str:
    """Return the verdicts in lines of `width`: one row per optimizer, one column per rival."""
    first = answers[0]
    heads = [f"{first.stages} stages, {first.microbatches} microbatches"]
    heads += [rival.label for rival in first.rivals.values()]
    verdicts = [[rival.row["verdict"] for rival in answer.rivals.values()] for answer in answers]
    optimizers = [names.optimizer(answer.optimizer) for answer in answers]
    lines = [[name, *words] for name, words in zip(optimizers, verdicts, strict=True)]
    return "\n".join(fitted(heads, lines, width, heads[:1]))


def handover(answers: Sequence[Advice]) -> str:
    """Return three lines of Python for the first advice that says go against a pipeline, under a
    line that says where they belong; the empty string if none says so.

    λ is that of the runs that decided, against the slowest of these pipelines.
    """
    return next((lines for answer in answers if (lines := _lines(answer))), "")


def _lines(advice: Advice) -> str:
    rivals = advice.rivals.values()
    arms = {
        rival.speed_up: rival.same_time.arm
        for rival in rivals
        if rival.decision.word == GO and rival.same_time
    }
    stay = any(rival.is_measured and rival.decision.word == STAY for rival in rivals)
    if not arms or advice.evidence is None or stay:
        return ""
    coefficients = {gap.arm: gap.coefficient for gap in advice.evidence.gaps}
    where = "on torch.distributed.pipelining, in place of Schedule1F1B (docs/pipeline.md)"
    # λ of the runs that decided against the slowest of these pipelines.
    code = CODE.format(microbatches=advice.microbatches, by=coefficients[arms[max(arms)]])
    lines = [f"to go with {names.optimizer(advice.optimizer)} {where}:", *code.split("\n")[1:-1]]
    return "\n  ".join(lines)
