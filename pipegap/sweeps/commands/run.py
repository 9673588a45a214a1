"""Runs the missing trials of a sweep, then reports gaps."""

import json
import shlex
from collections.abc import Sequence

from pipegap.analysis.table.text import hanging, terminal_width
from pipegap.sweeps.cluster.notices import Notices
from pipegap.sweeps.cluster.rounds import require_ready, run_rounds
from pipegap.sweeps.commands import COMMANDS
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.pricing import as_json, summary
from pipegap.sweeps.plan.sweep_plan import Round, SweepPlan
from pipegap.sweeps.request.command_line import NOTIFY, parse_request, take_url
from pipegap.sweeps.request.schema import ALL, PAPER, known
from pipegap.trainer.base.cli import DONE, FAILED, parser, take_choice
from pipegap.trainer.base.errors import BadInput, Stopped
from pipegap.trainer.folder.wellformed import LIST_FAILED, failures
from pipegap.trainer.store.opened import open_store


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 1 a trial failed or has not run, 143 stopped. Raises BadInput."""
    url, words = take_url(words)
    # Taken out first: the store records the words of a request, and a format asks for no trial.
    formats = dict(word.split("=", 1) for word in words if word.startswith("format="))
    in_json = take_choice(formats, "format", ("text", "json")) == "json"
    words = [word for word in words if not word.startswith("format=")]
    request = parse_request(_request_words(words))
    if in_json and not request.dry_run:
        allowed = "needs dry_run=true; pipegap status format=json shows a run"
        raise BadInput("format", "json", allowed)
    sweep_round = Round.first(request, open_store(request.where))
    if in_json:
        print(json.dumps(as_json(sweep_round), indent=1))
        return DONE
    print(hanging(summary(sweep_round), terminal_width()), flush=True)
    if request.dry_run:
        return DONE
    require_ready(sweep_round.store, sweep_round.todo)
    with sweep_round.store.driven(), Notices(url, sweep_round) as notices:
        first, (sweep_round, stopped) = sweep_round, run_rounds(sweep_round, notices)
        notices.end(sweep_round, stopped=stopped, has_run=bool(first.runnable))
        if notices.has_failed():  # nobody waits for this process to end: the reports are drawn
            print(f"stopped by fail_fast={request.fail_fast}")
        elif stopped:
            return _say_what_is_left(sweep_round)
        # The worst code of several sweeps. Still as the driver: a report is written to the store.
        return max(_end(sweep_round, sweep) for sweep in sweep_round.sweeps)


def _request_words(words: Sequence[str]) -> list[str]:
    """The words of a request. `--help` prints what can be asked for, and exits."""
    sweeps, scales, trackers, searches = (
        ", ".join(known(group)) for group in ("sweep", "scale", "tracking", "search")
    )
    commands = "\n".join(f"  {name:<10}{what}" for name, what in COMMANDS.items())
    return (
        parser(
            "pipegap sweep",
            "Runs the trials of a sweep that are not in the store yet, then reports gaps.\n\n"
            "e.g. pipegap sweep sweep=main scale=tiny dry_run=true",
            f"commands:\n{commands}\n\n"
            f"sweep=    (required) {sweeps}, or a file: path/to/a.yaml; several: a,b; "
            f"all of them: {ALL}; those of the paper: {PAPER}\n"
            f"scale=    {scales} (default: few_updates)\n"
            "results=  the store (default: results): a folder, or s3://BUCKET/PREFIX\n"
            "dry_run=  true prints the plan and runs nothing; format=json prints it for programs; "
            "gpus=8 prices it on so many GPUs, hourly=2.5 in money, per hour of a core or GPU\n"
            "gpus_per_trial=  of a trial without ranks, e.g. 0.5 to run two on each GPU\n"
            "first_trial=  true tries six updates before the sweep, as a sweep on GPUs does by "
            "itself; false does not\n"
            "fail_fast=  stops the sweep after so many trials that failed (default: never)\n"
            f"notify=  a URL to which notices are posted, or {NOTIFY} in the environment\n"
            f"tracking=  {trackers}: where to follow the trials; tracking.KEY=… "
            "as in conf/tracking/ (default: none)\n"
            "seeds=[0,1], grid.KEY=[…], arms.NAME=[…], tune.KEY=[…] and advice.KEY=… replace the "
            "sweep file's; "
            f"search={searches} lets a sampler choose settings, "
            "search.KEY=… as in conf/search/; "
            "any other key=value goes to every trial, as in pipegap trial",
        )
        .parse_args(words)
        .keys
    )


def _say_what_is_left(sweep_round: Round) -> int:
    """Whoever asked to stop will not wait for a report: Slurm kills after a minute."""
    print(f"stopped with {len(sweep_round.todo)} trials to go: the same command resumes them")
    where = shlex.quote(sweep_round.request.where)
    print(f"a report of what is done: pipegap report results={where} out=report")
    return Stopped.exit_code


def _end(sweep_round: Round, plan: SweepPlan) -> int:
    """Prints what became of a sweep, its report and its advice, or of one among several a line that
    names its page; returns an exit code."""
    request, snapshot, num_trials = sweep_round.request, sweep_round.snapshot, len(plan.distinct)
    # A failed trial is to do as well: the same command tries it again.
    todo = [trial for trial in plan.distinct if snapshot.finished(trial) is None]
    failed = [(t.name, row) for t in todo if (row := snapshot.failure(t)) is not None]
    text = sweep_record.report(sweep_round, plan)
    if len(sweep_round.sweeps) > 1:
        page = sweep_record.folder(request.results, plan) / "index.html"
        num_done = num_trials - len(todo)
        text = f"sweep {plan.label}: {num_done} of {num_trials} trials done: {page}"
    print(text)
    for line in failures(failed, num_trials):
        print(line)
    if failed:
        print(f"all that failed: {shlex.join([*LIST_FAILED, f'results={request.where}'])}")
    if num_left := len(todo) - len(failed):
        print(f"{num_left} trials have not run: the same command runs them")
    return FAILED if todo else DONE
