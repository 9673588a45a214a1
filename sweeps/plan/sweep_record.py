"""What a store keeps of a sweep: its record, for those who read the store, and its report.

The record says what was asked for, and which trials answer. `<results>/sweeps/<label>.json` holds
what the last command planned: `format` (2), `sweep`, `scale`, `label`, `words` (of the command
line, and the preferred ones that were `added`), `added`, `verdict` (the rule, if it has one),
`arms`, `seeds`, `settled` (nothing is left to tune or to judge), `remarks`, `compared` (ids of the
trials in its report) and `trials`: id → `arm`, `seed`, `tokens`, `flops` and `seconds`, the
expected time with start and evaluation, null if no trial of its shape has finished.
"""

import hashlib
import json
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from analysis.table.records import FORMAT
from sweeps.plan import tried_report
from sweeps.plan.pricing import Prices
from sweeps.plan.sweep_plan import SweepPlan, all_planned
from sweeps.request.command_line import Request
from sweeps.request.expand import Trial, unique
from sweeps.store.results import clean_old
from sweeps.store.store import SweepStore
from trainer.base.atomic import SUFFIX, write_json
from trainer.base.errors import BadInput
from trainer.config.identity import code_version
from trainer.folder.files import Damaged, content

FOLDER = "sweeps"
MADE_OF, PAGE = ".made_of.json", "index.html"
"""Files of a report: what the last one was made of, and what it printed; its page."""


def write(request: Request, sweeps: Sequence[SweepPlan], store: SweepStore) -> None:
    """Replace the record of each sweep; raise BadInput if the store cannot be written."""
    prices = Prices.measured(request.results, all_planned(sweeps))
    for sweep in sweeps:
        path = request.results / FOLDER / f"{sweep.label}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, record(request, sweep, prices))
            clean_old(path.parent, f".*{SUFFIX}", newest=path)
            store.push(path)
        except OSError as error:
            allowed = f"must be a folder that can be written ({error.strerror})"
            raise BadInput("results", request.results, allowed) from None


def record(request: Request, sweep: SweepPlan, prices: Prices) -> dict[str, Any]:
    """Return what the record of a sweep holds."""
    return {
        "format": FORMAT,
        "sweep": sweep.label.removesuffix(f"-{request.scale}"),
        "scale": request.scale,
        "label": sweep.label,
        "words": [*request.words, *sweep.added],
        "added": [*sweep.added],
        "verdict": sweep.sweep.verdict or "",
        "arms": [*sweep.sweep.arms],
        "seeds": sweep.sweep.seeds,
        "settled": sweep.settled,
        "remarks": sweep.remarks,
        "compared": sorted(sweep.compared),
        "trials": {trial.plan.trial_id: _trial(trial, prices) for trial in sweep.planned},
    }


def _trial(trial: Trial, prices: Prices) -> dict[str, Any]:
    return {
        "arm": trial.arm,
        "seed": trial.config["seed"],
        "tokens": trial.plan.tokens,
        "flops": trial.plan.flops,
        "seconds": prices.measured_seconds(trial),
    }


def report(request: Request, plan: SweepPlan, prices: Prices, store: SweepStore) -> str:
    """Writes the report of the arms at the chosen values, unless it is there; returns its text.

    The other values that tuning tried are in tuned.csv.
    """
    out = request.results / "reports" / plan.label
    folders = [trial.folder for trial in unique(plan.planned)]
    now = state(record(request, plan, prices), folders, code_version())
    text = printed(out, now)
    if text is not None:
        return f"{text}\nnothing has changed since this report was made"
    from analysis.report import report as page

    lines = [page.report(request.results, out, plan.label, request.where)]
    lines += tried_report.write(plan.sweep, plan.choices, out)
    if (search := plan.sweep.search) is not None:
        lines += tried_report.compare(request.results, search, plan.planned, out)
    text = "\n".join([*lines, *_advice(request.results, plan, request.where)])
    note(out, now, text)
    store.push(out)
    return text


def state(record: Mapping[str, Any], folders: Iterable[Path], version: str | None) -> str:
    """Return a hash of what a report is made of.

    That is the sweep's record without its costs, the results of its trials, and the `version` of
    the code. A version that is not of a commit or a release counts as another one each time.
    """
    costs = ("trials", "words")
    plan = {key: value for key, value in record.items() if key not in costs}
    results = sorted((folder.name, _modified(folder / "result.json")) for folder in folders)
    code = token_hex() if version is None or version.endswith("-dirty") else version
    whole = json.dumps([plan, sorted(record["trials"]), results, code], default=str)
    return hashlib.sha256(whole.encode()).hexdigest()


def _modified(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def printed(out: Path, now: str) -> str | None:
    """Return what the report in `out` printed; None unless it is made of the state `now`."""
    with suppress(Damaged, OSError, ValueError, LookupError):
        last = json.loads(content(out / MADE_OF))
        if (out / PAGE).is_file() and last["state"] == now:
            return str(last["printed"])
    return None


def note(out: Path, now: str, text: str) -> None:
    """Note what the report in `out` was made of, and what it printed."""
    write_json(out / MADE_OF, {"state": now, "printed": text})


def _advice(results: Path, plan: SweepPlan, store: str) -> Iterator[str]:
    """Yield the verdicts for each optimizer, and the command that shows what they rest on.

    `store`: the name of the store `results` in that command. Nothing for a sweep without a
    question, or without a finished trial.
    """
    question = plan.sweep.advice
    if question is None or not (results / "trials").is_dir():
        return
    from analysis.advice.advice import headline
    from analysis.advice.advise import advices, matrix
    from analysis.table.load import load
    from analysis.table.records import records

    shape = {"stages": question.stages, "microbatches": question.microbatches}
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the report says them
        trials = load(results, [trial.plan.trial_id for trial in plan.planned])
        answers = advices(trials, **shape, records=records(results))
    if answers:
        words = [*(f"{key}={value}" for key, value in shape.items()), f"results={store}"]
        yield matrix(answers)
        yield from map(headline, answers)
        yield f"what this rests on: python -m analysis advise {shlex.join(words)}"
