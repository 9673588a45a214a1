"""Runs the missing trials of a sweep, then reports gaps."""

import shlex
import time
from collections.abc import Callable, Sequence

from analysis.objects.bucket import StoreAway
from sweeps.commands import COMMANDS, SAYS
from sweeps.plan import sweep_record
from sweeps.plan.pricing import Prices, summary
from sweeps.plan.sweep_plan import SweepPlan, all_planned, plan_sweeps
from sweeps.request.command_line import Request, parse_request
from sweeps.request.expand import Trial, unique
from sweeps.request.files import ALL, PAPER, known
from sweeps.store.opened import open_store
from sweeps.store.results import failed, finished, require_ready
from sweeps.store.store import SweepStore
from trainer.base.cli import DONE, FAILED, parser
from trainer.base.errors import Stopped
from trainer.base.stopping import stopping

POLL_EVERY = 0.5
"""Seconds between two questions to the queue, which limits the looks into the store itself."""


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 1 a trial failed or has not run, 143 stopped. Raises BadInput."""
    request = parse_request(_request_words(words))
    store = open_store(request.where)
    store.pull()
    sweeps = plan_sweeps(request)
    print(summary(request, sweeps), flush=True)
    if request.dry_run:
        return DONE
    require_ready(store, all_planned(sweeps))
    sweep_record.write(request, sweeps, store)
    sweeps, stopped = _run(request, sweeps, store)
    store.pull()
    sweep_record.write(request, sweeps, store)  # what is left is priced by what has finished
    if stopped:  # whoever asked will not wait for a report (Slurm kills after a minute)
        _say_what_is_left(request, sweeps)
        return Stopped.exit_code
    prices = Prices.measured(request.results, all_planned(sweeps))
    return max(_end(request, sweep, prices, store) for sweep in sweeps)


def _request_words(words: Sequence[str]) -> list[str]:
    """The words of a request. `--help` prints what can be asked for, and exits."""
    sweeps, scales, trackers, searches = (
        ", ".join(known(group)) for group in ("sweep", "scale", "tracking", "search")
    )
    commands = "\n".join(f"  {name:<10}{what}" for name, what in COMMANDS.items())
    return (
        parser(
            "python -m sweeps [COMMAND]",
            "Runs the trials of a sweep that are not in the store yet, then reports gaps.",
            f"commands:\n{commands}\n\n"
            f"sweep=    {sweeps}, or a file: path/to/a.yaml; several: a,b; "
            f"all of them: {ALL}; those of the paper: {PAPER}\n"
            f"scale=    {scales} (default: few_updates)\n"
            "results=  the store (default: results): a folder, or s3://BUCKET/PREFIX\n"
            "dry_run=  true prints the plan and runs nothing; gpus=8 prices it on so many GPUs\n"
            "gpus_per_trial=  of a trial without ranks, e.g. 0.5 to run two on each GPU\n"
            "first_trial=  true tries six updates before the sweep, as a sweep on GPUs does by "
            "itself; false does not\n"
            f"tracking=  {trackers}: where to follow the trials; tracking.KEY=… "
            "as in conf/tracking/ (default: none)\n"
            "seeds=[0,1], grid.KEY=[…], tune.KEY=[…] and advice.KEY=… replace the sweep file's; "
            f"search={searches} lets a sampler choose settings, "
            "search.KEY=… as in conf/search/; "
            "any other key=value goes to every trial, as in python -m trainer",
        )
        .parse_args(words)
        .keys
    )


def _run(
    request: Request, sweeps: list[SweepPlan], store: SweepStore
) -> tuple[list[SweepPlan], bool]:
    """Runs the trials that can run, in rounds: those that decide which others do, then the others.

    This driver tries each trial once at most. Trials that another driver runs are waited for, and
    run here if it dies. Returns the plans at the end, and whether a signal asked to stop.
    """
    if not _missing(sweeps):
        return sweeps, False
    from sweeps.cluster.connection import cluster, require_seen_by_nodes

    # Ray installs its signal handlers when it starts; `stopping` replaces them after that.
    with cluster() as folder, stopping(SAYS) as asked_to_stop:
        # Tune is large: it is imported while Ray's processes start.
        from sweeps.cluster.driver import run_trials
        from sweeps.cluster.first_trial import try_first
        from sweeps.cluster.queue import WorkList
        from sweeps.view.display import Display
        from sweeps.view.render import DriverConsole

        require_seen_by_nodes(store)
        how = request.first_trial, request.gpus_per_trial, request.where
        try_first(_missing(sweeps), all_planned(sweeps), *how, asked_to_stop)
        work = WorkList(store)
        work.add(_missing(sweeps))
        while len(work) and not asked_to_stop():
            num_left = len(work)
            if work.queue.is_ready():
                planned, console = all_planned(sweeps), DriverConsole()
                view = (request.title, planned, work.left, store.folder, store.pull, asked_to_stop)
                with Display(*view, console) as display:
                    gpus = request.gpus_per_trial
                    run_trials(
                        work,
                        gpus,
                        display,
                        asked_to_stop,
                        request.tracking,
                        folder,
                        store,
                    )
            else:
                time.sleep(POLL_EVERY)
            if len(work) < num_left:
                sweeps = _refreshed(request, sweeps, store, asked_to_stop)
                work.add(_missing(sweeps))
        return sweeps, asked_to_stop()


def _refreshed(
    request: Request, sweeps: list[SweepPlan], store: SweepStore, asked_to_stop: Callable[[], bool]
) -> list[SweepPlan]:
    """The plans by the results that the store has now; what has changed is recorded. While the
    store is away it is asked again."""
    while not asked_to_stop():
        try:
            store.pull()
            new = [sweep.refreshed() for sweep in sweeps]
            changed = [now for old, now in zip(sweeps, new, strict=True) if now != old]
            sweep_record.write(request, changed, store)
            return new
        except StoreAway:
            time.sleep(POLL_EVERY)
    return sweeps


def _missing(sweeps: Sequence[SweepPlan]) -> list[Trial]:
    runnable = {trial.plan.trial_id for sweep in sweeps for trial in sweep.runnable}
    planned = [trial for trial in all_planned(sweeps) if trial.plan.trial_id in runnable]
    return [trial for trial in planned if finished(trial) is None]


def _say_what_is_left(request: Request, sweeps: Sequence[SweepPlan]) -> None:
    left = sum(finished(trial) is None for trial in all_planned(sweeps))
    print(f"stopped with {left} trials to go: the same command resumes them")
    where = shlex.quote(request.where)
    print(f"a report of what is done: python -m analysis results={where} out=report")


def _end(request: Request, plan: SweepPlan, prices: Prices, store: SweepStore) -> int:
    """Prints what became of a sweep, its report and its advice; returns an exit code."""
    if len(request.sweeps) > 1:
        print(f"\nsweep {plan.label}")
    planned = unique(plan.planned)
    lost = [trial for trial in planned if failed(trial)]
    for trial in lost:
        print(f"failed: {trial.name}, see {trial.folder}/result.json")
    print(sweep_record.report(request, plan, prices, store))
    if plan.sweep.verdict:
        print(f"rule for the verdict, written before the run: {plan.sweep.verdict}")
    left = sum(finished(trial) is None for trial in planned) - len(lost)
    if left:
        print(f"{left} trials have not run: the same command runs them")
    return FAILED if lost or left else DONE
