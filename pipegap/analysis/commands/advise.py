"""May I make my pipeline asynchronous? From the trials of a store and a simulated pipeline.

e.g. pipegap advise stages=4 microbatches=8
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pipegap.analysis.commands.words import count, plain
from pipegap.trainer.base.build import build
from pipegap.trainer.base.cli import Given, number, take_choice
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.identity import yamls
from pipegap.trainer.store.opened import pulled

if TYPE_CHECKING:
    from pipegap.analysis.advice.speed import Costs, TwoSteps
    from pipegap.analysis.advice.verdict import Advice

KEYS = {
    "optimizer": "which one, as in the store (default: all that were trained with a delay)",
    "stages": "(required) p of the pipeline",
    "microbatches": "(required) m of the pipeline, p - 1 or more",
    "results": "the store (default: results)",
    "activations": "of how many microbatches a rank may keep activations (default: as 2BW does)",
    "chunks": "how many parts of the model a rank may have (default: as many as the layers of the "
    "model that forward names allow, else 4)",
    "updates": "how long sync trains (default: the length whose runs come nearest to the time of "
    "the fastest rival, of equal ones that of the most seeds, then the longest)",
    "forward": "time of a microbatch on each stage, in any unit, e.g. the layers of each: 8,8,8,6; "
    "or a model of conf/model, e.g. smollm2_135m: its work on each stage as it is cut",
    "backward": "the same (default: twice the forward)",
    "update": "time of an update on a stage (default: 0)",
    "communication": "time until a result is there on the next stage (default: 0)",
    "step_time": "measured time of a step of 1F1B, in the same unit, or of two steps: "
    "2.2@16,3.9@32 (default: what is simulated)",
    "time_2bw": "measured time of a step of 2BW, or of several: 1.9,1.88 (default: simulated)",
    "rival.NAME": "the same of whatever else you could run: rival.fsdp=1.01, or of steps of two "
    "numbers of microbatches: rival.DualPipeV=1.93@16,3.48@32",
    "trace": "trace.json of a trial of such a pipeline, or a folder of torch's profiler, a file "
    "per rank, for these times in microseconds",
    "format": "text, json",
    "COLUMN": "only trials with this value in a column: num_parameters=418752, batch_size=16",
}
MOST = {"chunks": 16, "stages": 256, "microbatches": 4_096, "updates": 10**9}
"""The largest numbers; a pipeline of these stages is simulated within some seconds."""
LENGTH = 1024
"""Tokens of a sequence, for the attention of a model that `forward` names."""
RIVAL, RESULTS, AT = "rival.", "results", "@"
SHAPE = {
    "stages": "stages the pipeline has, e.g. stages=4",
    "microbatches": "microbatches a batch has, e.g. microbatches=8",
}
"""What must be given, in words."""
SHORTEST, LONGEST = 1e-9, 1e9
"""The times above 0, in any unit, that `timing` can compare with each other."""


def main(values: Given) -> None:
    """Prints the advice; raises BadInput."""
    # Late, as in every command: its help and its refusals do not wait for pandas.
    from pipegap.analysis.advice.advise import advices, advise
    from pipegap.analysis.advice.speed import CHUNKS
    from pipegap.analysis.advice.timing import timing
    from pipegap.analysis.table.load import load
    from pipegap.analysis.table.selection import fulfilling
    from pipegap.trainer.store.records import records

    shape = []
    for key, example in SHAPE.items():
        if key not in values:
            raise BadInput(key, "", f"must say how many {example}")
        shape.append(count(values, key, 0, MOST[key]))
    stages, microbatches = shape
    updates = count(values, "updates", 0, MOST["updates"])
    form = take_choice(values, "format", ("text", "json"))
    measured, own_times, two_steps = _measured(values, stages, microbatches)
    # Any other key is a column of the trials, and its value a condition.
    conditions = {
        key: value for key, value in values.items() if key not in KEYS and not key.startswith(RIVAL)
    }
    activations = _times(values, "activations", 1)
    layers = _model(values).get("num_layers")
    # A part of the model has one layer at least, and ranks have equally many parts.
    parts = min(max(1, layers // stages), MOST["chunks"]) if layers else CHUNKS
    chunks = count(values, "chunks", parts, MOST["chunks"])
    times: dict[str, Any] = {
        "measured": measured,
        "own_times": own_times,
        "costs": _costs(values, stages, microbatches, two_steps, chunks),
        "two_steps": two_steps,
    }
    # No store is needed where times alone decide: a measured rival may be faster than 2BW.
    if measured and "results" not in values and not Path(RESULTS).exists():
        timed = timing(num_microbatches=microbatches, **times)
        if timed.faster:  # whatever the losses are
            print("\n".join([*timed.limits, *timed.shares]))
            return
    place = values.get("results", RESULTS)
    store = pulled(place)
    trials = fulfilling(load(store), conditions)
    question: dict[str, Any] = {
        **{"stages": stages, "microbatches": microbatches, "updates": updates or None},
        **times,
        **{"activations": activations[0] if activations else None, "chunks": chunks},
        "records": records(store),
    }
    if "optimizer" in values:
        answers = [advise(trials, optimizer=values["optimizer"], **question)]
    elif not (answers := advices(trials, **question)):
        # The last word that chose among the trials is the likeliest to have chosen none.
        *_, (key, value) = {"results": place, **conditions}.items()
        raise BadInput(key, value, "must have trials with a delay, of which there are none")
    if place != RESULTS:  # the command of an advice, which knows no place, gets this store
        word = shlex.quote(f"results={place}")
        answers = [
            replace(answer, command=f"{answer.command} {word}") if answer.command else answer
            for answer in answers
        ]
    if form == "json":
        nodes = [plain(asdict(answer)) for answer in answers]
        content = nodes[0] if "optimizer" in values else nodes
        print(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        print(_as_text(answers))


def _as_text(answers: "Sequence[Advice]") -> str:
    from pipegap.analysis.advice.advise import handover, matrix
    from pipegap.analysis.advice.verdict import heading, headline, ranking
    from pipegap.analysis.table.text import hanging, terminal_width

    width = terminal_width()
    if len(answers) == 1:
        lines = [answers[0].text(width)]
    else:
        # The limits are those of the pipeline, and so the same for every optimizer.
        lines = [*heading(answers), *answers[0].limits, matrix(answers, width)]
        lines += [*ranking(answers), ""]
        lines = [hanging("\n".join([*lines, *map(headline, answers)]), width)]
    if todo := handover(answers):
        head, *code = todo.splitlines()
        lines += ["", hanging(head, width), *code]  # code is copied: its lines stay whole
    return "\n".join(lines)


def _measured(
    values: Given, stages: int, microbatches: int
) -> tuple[dict[str, tuple[float, ...]], tuple[float, ...], "dict[str, TwoSteps]"]:
    """Return the measured times of a step of each rival, those of 2BW, and for each pipeline of
    which steps of two numbers of microbatches are given all of its times."""
    from pipegap.analysis.advice.speed import FLUSHED, SLOWEST

    if (key := f"{RIVAL}{SLOWEST}") in values:
        raise BadInput(key, values[key], "must be given as step_time")
    rivals = {key.removeprefix(RIVAL): key for key in values if key.startswith(RIVAL)}
    if "" in rivals:
        raise BadInput(RIVAL, values[RIVAL], "must name the rival: rival.fsdp=1.01")
    keys = rivals | {SLOWEST: "step_time"}
    two_steps = {
        name: _two_steps(values, key, stages, microbatches)
        for name, key in keys.items()
        if AT in values.get(key, "")
    }
    if SLOWEST in two_steps and max(map(len, two_steps[SLOWEST].times.values())) > 1:
        raise BadInput("step_time", values["step_time"], "must have one time at each number")
    # Of a measured 2BW no simulated time may be compared that was not tied to a measured one.
    simulated = {"step_time"} if "time_2bw" in values else {"step_time", "trace", "forward"}
    is_tied = simulated & {*values} or {*FLUSHED} & {*two_steps}
    keys_of_times = [key for key in values if key == "time_2bw" or key.startswith(RIVAL)]
    if keys_of_times and not is_tied:
        key = keys_of_times[0]
        raise BadInput(key, values[key], "must stand beside step_time, in the same unit")
    names = (name for name in rivals if name not in two_steps)
    measured = {name: _above_0(values, rivals[name]) for name in names}
    return measured, _above_0(values, "time_2bw"), two_steps


def _two_steps(values: Given, key: str, stages: int, microbatches: int) -> "TwoSteps":
    """Return the times of `TIME@MICROBATCHES,…`, which is there."""
    from pipegap.analysis.advice.advise import MOST as MOST_SIMULATED
    from pipegap.analysis.advice.speed import TwoSteps

    times: dict[int, tuple[float, ...]] = {}
    for word in values[key].split(","):
        time, _, num = word.partition(AT)
        num_microbatches = count({key: num}, key, 0, MOST_SIMULATED // stages) if num else 0
        earlier_times = times.get(num_microbatches, ())
        times[num_microbatches] = (*earlier_times, *_above_0({key: time}, key))
    # 0 stands for a time without a number of microbatches.
    if len(times) != 2 or 0 in times or microbatches not in times:
        allowed = f"must be times at two numbers of microbatches, one of them {microbatches}"
        example = f"1.9@{microbatches},3.5@{2 * microbatches}"
        raise BadInput(key, values[key], f"{allowed}: {key}={example}")
    return TwoSteps(times)


def _above_0(values: Given, key: str) -> tuple[float, ...]:
    """Return measured times; empty if the key is not given."""
    times = tuple(map(number, values[key].split(","))) if key in values else ()
    if not all(SHORTEST <= time <= LONGEST for time in times):
        raise BadInput(key, values[key], f"must be times from {SHORTEST:g} to {LONGEST:g}")
    return times


def _costs(
    values: Given,
    stages: int,
    microbatches: int,
    two_steps: "Mapping[str, TwoSteps]",
    chunks: int,
) -> "Costs":
    from pipegap.analysis.advice.speed import FLUSHED, SLOWEST, with_step_time, with_two_steps
    from pipegap.analysis.advice.timing import traced_costs

    if "trace" not in values:
        costs = _given_costs(values, stages)
    elif key := next((key for key in ("forward", "backward", "update") if key in values), ""):
        raise BadInput(key, values[key], "must not stand beside trace, which has it")
    else:  # a trace does not say how long messages take
        [communication] = _times(values, "communication", 1) or (0.0,)
        costs = traced_costs(Path(values["trace"]), stages, microbatches)
        costs = replace(costs, communication=communication)
    if "step_time" in values and SLOWEST not in two_steps:
        [step_time] = _times(values, "step_time", 1)
        return with_step_time(costs, microbatches, step_time)
    # Without a step of SLOWEST, that of another pipeline of ours says how long work takes.
    if name := next((name for name in FLUSHED if name in two_steps), ""):
        return with_two_steps(costs, microbatches, name, two_steps[name], chunks)
    return costs


def _given_costs(values: Given, stages: int) -> "Costs":
    from pipegap.analysis.advice.speed import Costs

    forward = _work(values, stages) or _times(values, "forward", stages) or (1.0,) * stages
    backward = _times(values, "backward", stages) or tuple(2 * time for time in forward)
    if not min(*forward, *backward) > 0:
        raise BadInput("forward", values.get("forward", "1"), "must be above 0, as the backward")
    [update], [communication] = (
        _times(values, key, 1) or (0.0,) for key in ("update", "communication")
    )
    are_known = "forward" in values or "backward" in values
    return Costs(forward, backward, update, communication, are_known=are_known)


def _work(values: Given, stages: int) -> tuple[float, ...]:
    """Return the work of each stage of the model that `forward` names, over the mean; empty if it
    names none."""
    keys = _model(values)
    if not keys:
        return ()
    model = build(keys)
    try:
        work = model.work(model.split(stages, LENGTH), LENGTH)
    except BadInput as error:  # the model names its own keys, of which this command has `stages`
        raise BadInput("stages", stages, error.allowed) from None
    return tuple(stages * stage / sum(work) for stage in work)


def _model(values: Given) -> dict[str, Any]:
    """Return the keys of the model that `forward` names; empty if it names none."""
    path = CONF / "model" / f"{values.get('forward')}.yaml"
    return yaml.safe_load(path.read_text("utf-8")) if path in yamls("model") else {}


def _times(values: Given, key: str, num: int) -> tuple[float, ...]:
    """Return `num` times, all alike if one number is given; empty if the key is not given."""
    if key not in values:
        return ()
    times = tuple(map(number, values[key].split(",")))
    are_times = all(time == 0 or SHORTEST <= time <= LONGEST for time in times)
    if len(times) not in (1, num) or not are_times:
        allowed = f"must be 0 or a number from {SHORTEST:g} to {LONGEST:g}"
        allowed += f", or {num}, one per stage" if num > 1 else ""
        raise BadInput(key, values[key], allowed)
    return times * num if len(times) == 1 else times
