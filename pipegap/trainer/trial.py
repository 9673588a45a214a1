"""Runs one trial, in this process or as a gang of processes."""

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipegap.trainer.base import resources
from pipegap.trainer.base.children import compiling, require_compiler
from pipegap.trainer.base.errors import BadInput, LeaseLost, Status, Stopped
from pipegap.trainer.config.identity import made_by
from pipegap.trainer.config.plan import Plan, plan_trial
from pipegap.trainer.config.work import note_compiled
from pipegap.trainer.executors.executor import Executor
from pipegap.trainer.folder import record
from pipegap.trainer.folder.lease import newest_number
from pipegap.trainer.folder.record import ReadOnlyFolder, TrialFolder, tidy
from pipegap.trainer.folder.wellformed import Row
from pipegap.trainer.parts import Parts, build_emulated, build_parts, build_pipelined, open_data
from pipegap.trainer.ranks.groups import Heartbeat, joined
from pipegap.trainer.ranks.spawn import AskedToStop, Launch, Parent, run_gang
from pipegap.trainer.training import Job, Report, Training, nowhere, outcome, restored_other

Config = Mapping[str, Any]


def run_trial(
    config: Config,
    report: Report = nowhere,
    asked_to_stop: AskedToStop = lambda: False,
    launch: Launch = run_gang,
) -> Row:
    """Runs or resumes the trial of a resolved config; returns its result.

    The callback `report` gets every row of metrics.jsonl; `launch` starts the ranks of a gang. A
    finished trial does not run again. A divergence is a result. Raises Stopped, after a checkpoint,
    once `asked_to_stop` is true, and BadInput for a config that cannot run. Any other error is
    recorded and raised; once `asked_to_stop` is true it raises Stopped instead.
    """
    runners: Mapping[str, Callable[[], Row]] = {
        "emulated": lambda: _train_alone(job),
        "pipelined": lambda: _train_in_gang(job, launch),
    }
    job = Job(config, plan_trial(config), report, asked_to_stop)
    folder = job.folder()
    if (earlier_result := folder.result()) is not None:
        tidy(folder.path)
        return earlier_result
    folder.require_sound(config)
    newest_before = newest_number(folder.path)
    try:
        # Around the gang too: a signal may end a rank before the rank can say why.
        with _failing_as_stopped(job, folder):
            return runners[config["runner"]]()
    # None of these is a failure, and after a lost lease the folder belongs to another process.
    except (BadInput, Stopped, LeaseLost):
        raise
    except Exception:
        # The error may be a full disk, which cannot be recorded; or another process may have
        # claimed the trial meanwhile.
        with suppress(OSError, BadInput, LeaseLost):
            record_failure(config, traceback.format_exc(), newest_before)
        raise


@contextmanager
def _failing_as_stopped(job: Job, folder: TrialFolder) -> Iterator[None]:
    """Raises Stopped for what fails after the trial was asked to stop.

    A signal for the whole group (Ctrl-C, `timeout`, Slurm) ends processes that work for this one
    too: a compiler that was killed is no failure of the trial.
    """
    try:
        yield
    except (BadInput, Stopped, LeaseLost):
        raise
    except Exception as error:
        if not job.asked_to_stop():
            raise
        # It did not save at this stop, so it resumes from the last checkpoint.
        saved = record.newest_first(folder.path)
        raise Stopped(saved[0].num_updates if saved else 0) from error


def finished_result(config: Config) -> Row | None:
    """Return the result in the trial's folder; None if the trial has to run.

    Raises BadInput if the folder is another trial's.
    """
    return Job(config, plan_trial(config)).folder().result()


def record_failure(config: Config, error: str, newest_before: int | None = None) -> None:
    """Records the `error` of a trial whose process could not; keeps a finished result.

    `newest_before` is the number of the newest attempt before the one that failed, if that is
    known. The error is then recorded with the attempt that failed, not with one of its own.
    """
    plan = plan_trial(config)
    folder = Job(config, plan).folder()
    with folder.claimed(config, made_by(config["device"]), newest_before):
        if folder.result() is None:  # else another process has finished it meanwhile
            device, failed = config["device"], Status.FAILED
            folder.fail(outcome(config, plan, device, failed, plan.num_updates, error=error))


def _train_alone(job: Job) -> Row:
    """Runs all stages in this process; returns the result."""
    device = resources.require_device(job.config["device"])
    resources.require_memory(job.plan.memory_bytes, device)
    if job.config["compile"] == "update":
        require_compiler()
    resources.reset_peak_memory(device)
    with _reproducible(job.config):
        parts = build_parts(job.config, job.plan.num_updates)
        executor = build_emulated(job.config, parts, device)
        result = _train(job, job.folder(), device, parts, executor)
    note_compiled(job.config)  # the price of a trial with the same graphs is then without them
    return result


@contextmanager
def _reproducible(config: Config) -> Iterator[None]:
    seed = resources.stream_seed(config["seed"], "optimizer")
    with (
        resources.reproducible(seed, config["num_threads"], config["deterministic"]),
        compiling() if config["compile"] else nullcontext(),
    ):
        yield


def _train(
    job: Job,
    folder: TrialFolder,
    device: torch.device,
    parts: Parts,
    executor: Executor,
    on_claim: Callable[[], None] = lambda: None,
    on_finish: Callable[[Path], None] = lambda folder: None,
) -> Row:
    """Claims the folder and trains, unless another process has finished the trial meanwhile.

    The parts are built before the claim: a trial that cannot run leaves no trace in the folder.
    """
    # For the same reason a `resume_from` that cannot be used is refused before the claim. A trial
    # with a checkpoint of its own no longer reads it.
    if not record.newest_first(folder.path):
        restored_other(job.config, executor)
    with folder.claimed(job.config, made_by(resources.device_name(device))):
        on_claim()
        if (result := folder.result()) is not None:
            return result
        with _failing_as_stopped(job, folder):  # here, so that the attempt's file says so too
            return Training(job, device, parts, executor, folder, on_finish).run()


def _train_in_gang(job: Job, launch: Launch) -> Row:
    """Starts the ranks and waits for them; under torchrun this process is a rank itself."""
    config, plan = job.config, job.plan
    if dist.is_torchelastic_launched():
        return _as_elastic_rank(job)
    open_data(config)  # raises BadInput once, here, and not in every rank
    parent = Parent(job.report, config["timeout"], job.asked_to_stop)
    launch(_as_rank, (config, plan), plan.num_processes, parent)
    result = job.folder().result()  # written by rank 0, which sends rows but no result
    assert result is not None
    return result


def _as_rank(
    store: dist.Store, heartbeat: Heartbeat, send: Callable[[Row], None], config: Config, plan: Plan
) -> None:
    """Runs one rank, wherever `launch` started it."""
    job = Job(config, plan, send, heartbeat.asked_to_stop)
    # The supervisor finds the rank that hangs, after `timeout`: torch's own limit must not come
    # first, which only names the ranks that waited for it.
    _train_rank(job, heartbeat, store, 2 * config["timeout"])


def _as_elastic_rank(job: Job) -> Row:
    config, rank, world = job.config, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world != job.plan.num_processes:
        times = f"times num_replicas={config['num_replicas']}"
        allowed = f"{times} must be torchrun's {world} processes"
        raise BadInput("pipeline.num_stages", config["pipeline"]["num_stages"], allowed)
    # Nobody reads this heartbeat: under torchrun only torch's own limit finds a rank that hangs.
    return _train_rank(job, Heartbeat([0.0] * world, rank, [0]), None, config["timeout"])


def _train_rank(job: Job, heartbeat: Heartbeat, store: dist.Store | None, timeout: float) -> Row:
    config, rank = job.config, heartbeat.rank
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    device = resources.rank_device(config["device"], local_rank, job.plan.num_processes)
    num_ranks = config["pipeline"]["num_stages"]
    with (
        joined(store, rank, num_ranks, config["num_replicas"], device, heartbeat, timeout) as gang,
        _reproducible(config),
    ):
        resources.reset_peak_memory(device)
        parts = build_parts(config, job.plan.num_updates)
        executor = build_pipelined(config, parts, gang)
        if not gang.records:  # every rank has all rows; one of them reports
            job = job._replace(report=nowhere)
        folder = job.folder(TrialFolder if gang.records else ReadOnlyFolder)
        files = [executor.write_trace] if config["trace"] else []
        # The barrier: nobody reads the folder before it is claimed.
        return _train(job, folder, device, parts, executor, gang.barrier, *files)
