"""What a store keeps of a sweep: its record, for those who read the store, and its report.

The record says what was asked for, and which trials answer. `<results>/sweeps/<label>.json` holds
what the last command planned: `format` (2), `sweep`, `scale`, `label`, `request` (a hash of what
was asked for: see `labels`), `words` (of the command line, and what its scale `added`), `added`,
`question` and `verdict` (the rule), empty without, `arms`, `seeds`, `settled` (nothing is left to
tune or to judge), `remarks`, `compared` (ids of the trials in its report) and `trials`: id → `arm`,
`seed`, `tokens`, `flops` and `seconds`, the expected time with start and evaluation, null if no
trial of its shape has finished.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from pipegap.sweeps.plan import choosing
from pipegap.sweeps.plan.sweep_plan import Round, SweepPlan, SweepRequest
from pipegap.trainer.base.atomic import clean, create_json, write_json
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.identity import code_version
from pipegap.trainer.folder.lease import STALE_AFTER
from pipegap.trainer.folder.wellformed import RESULT, Damaged, content
from pipegap.trainer.store.records import FORMAT, of_sweep

FOLDER = "sweeps"
OLD_NS = round(STALE_AFTER * 1e9)
"""Age of a temporary file that no living process may write, in nanoseconds."""
MADE_OF, PAGE = ".made_of.json", "index.html"
"""Files of a report: what the last one was made of, and what it printed; its page."""


def write(sweep_round: Round, sweeps: Sequence[SweepPlan]) -> None:
    """Replace the record of each sweep; raise BadInput if the store cannot be written, or another
    request has taken a label since these were planned."""
    results = sweep_round.request.results
    for sweep in sweeps:
        path = results / FOLDER / f"{sweep.label}.json"
        holds = record(sweep_round, sweep)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                create_json(path, holds)  # exclusive: two drivers may want one new label
            except FileExistsError:
                if not _is_free(results, sweep.request):
                    allowed = f"was begun with other words just now, as {sweep.label}: run it again"
                    raise BadInput("sweep", sweep.request.name, allowed) from None
                write_json(path, holds)
            clean(path.parent, path.stat().st_mtime_ns - OLD_NS)  # of killed drivers
            sweep_round.store.push(path)
        except OSError as error:
            allowed = f"must be a folder that can be written ({error.strerror})"
            raise BadInput("results", results, allowed) from None


def _is_free(results: Path, request: SweepRequest) -> bool:
    """Whether no other request has taken the label since."""
    request_now = replace(request, records=of_sweep(results, request.name, request.scale))
    return request_now.label == request.label


def record(sweep_round: Round, sweep: SweepPlan) -> dict[str, Any]:
    """Return what the record of a sweep holds."""
    words, added = sweep_round.request.words, _added_words(sweep_round.request.words, sweep)
    seconds, measured = sweep_round.expected.seconds, sweep_round.expected.measured
    return {
        "format": FORMAT,
        "sweep": sweep.request.name,
        "scale": sweep_round.request.scale,
        "label": sweep.label,
        "request": sweep.request.digest,
        "words": [*words, *added],
        "added": added,
        "question": sweep.sweep.question or "",
        "verdict": sweep.sweep.verdict or "",
        "arms": [*sweep.sweep.arms],
        "seeds": sweep.sweep.seeds,
        "settled": sweep.settled,
        "remarks": sweep.remarks,
        "compared": sorted(sweep.compared),
        "trials": {
            trial.trial_id: {
                "arm": trial.arm,
                "seed": trial.config["seed"],
                "tokens": trial.plan.tokens,
                "flops": trial.plan.flops,
                "seconds": seconds[trial.trial_id] if trial.trial_id in measured else None,
            }
            for trial in sweep.planned
        },
    }


def _added_words(words: Sequence[str], sweep: SweepPlan) -> list[str]:
    """Return the word by which all trials are compiled, if the command line does not have it: a
    report compares only trials that were compiled in the same way."""
    is_said = any(word.startswith("compile=") for word in words)
    ways = {trial.config["compile"] for trial in sweep.planned}
    return ["compile=update"] if ways == {"update"} and not is_said else []


def report(sweep_round: Round, plan: SweepPlan) -> str:
    """Write the report of the arms at the chosen values; return its text for this terminal.

    Nothing is written where the report is there, and was printed for a terminal as wide. The other
    values that tuning or a search tried are in tuned.csv or searched.csv.
    """
    from pipegap.analysis.table.text import terminal_width

    request = sweep_round.request
    out = folder(request.results, plan)
    folders = [trial.folder for trial in plan.distinct]
    made_of = state(record(sweep_round, plan), folders, code_version())
    # A report takes long: it is made again only if something that it is made of has changed.
    texts, width = printed(out, made_of), str(terminal_width())
    if width in texts:
        return f"{texts[width]}\nnothing has changed since this report was made"
    from pipegap.analysis.report import report as page
    from pipegap.analysis.report.answer import Asked

    search = plan.sweep.search
    question = Asked(plan.sweep.advice, search.seeds if search else None)
    lines = [*choosing.write(plan.sweep, plan.choices, out)]
    lines += [page.report(request.results, out, plan.label, request.where, question)]
    text = "\n".join(lines)
    # Last: the report is whole.
    write_json(out / MADE_OF, {"state": made_of, "printed": {**texts, width: text}})
    sweep_round.store.push(out)
    return text


def folder(results: Path, plan: SweepPlan) -> Path:
    """Return where the report of a sweep lies."""
    return results / "reports" / plan.label


def state(record: Mapping[str, Any], folders: Iterable[Path], version: str | None) -> str:
    """Return a hash of what a report is made of.

    That is the sweep's record without its costs, the results of its trials, and the `version` of
    the code. A version that is not of a commit or a release counts as another one each time.
    """
    costs = ("trials", "words")  # `trials` has their expected seconds; its ids are hashed below
    plan = {key: value for key, value in record.items() if key not in costs}
    results = sorted((folder.name, _modified(folder / RESULT)) for folder in folders)
    code = token_hex() if version is None or version.endswith("-dirty") else version
    whole = json.dumps([plan, sorted(record["trials"]), results, code], default=str)
    return hashlib.sha256(whole.encode()).hexdigest()


def _modified(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def printed(out: Path, text_now: str) -> dict[str, str]:
    """Return what the report in `out` printed, by the width of the terminal; empty unless it is
    made of the state `text_now`."""
    with suppress(Damaged, OSError, ValueError, LookupError, AttributeError):  # of older code too
        last = json.loads(content(out / MADE_OF))
        if (out / PAGE).is_file() and last["state"] == text_now:
            return {str(width): str(text) for width, text in last["printed"].items()}
    return {}
