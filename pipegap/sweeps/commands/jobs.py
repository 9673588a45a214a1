"""Lists the jobs of a Ray cluster that are sweeps.

e.g. pipegap jobs
"""

from collections.abc import Sequence
from datetime import datetime

from pipegap.sweeps.cluster.jobs import ADDRESS, jobs_of, sweep_jobs
from pipegap.trainer.base.cli import parse, refuse_others


def main(words: Sequence[str]) -> int:
    """Prints one line per job, the oldest first: id, status, start, command. Exit code 0."""
    values = parse(words, "pipegap jobs", __doc__ or "", ADDRESS)
    address = values.pop("address", "")
    refuse_others(values, "pipegap jobs")
    with jobs_of(address) as client:
        jobs = sweep_jobs(client)
        for job in jobs:
            # Ray has milliseconds, or nothing yet.
            started = datetime.fromtimestamp((job.start_time or 0) / 1000).isoformat(" ", "seconds")
            # Before these words stands the search for the cluster's Python: `jobs.INTERPRETER`.
            what = f"pipegap {job.entrypoint.partition('-m pipegap ')[2]}"
            print(f"{job.submission_id}  {job.status:<9}  {started}  {what}")
    if not jobs:
        print("the cluster has no jobs that are sweeps")
    return 0
