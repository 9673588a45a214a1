"""Ends jobs of a Ray cluster: their running trials save a checkpoint first.

e.g. pipegap stop raysubmit_1a2b3c
"""

from collections.abc import Sequence

from pipegap.sweeps.cluster.jobs import ADDRESS, jobs_of, sweep_jobs, wait_for_end
from pipegap.trainer.base.cli import parse, refuse_others
from pipegap.trainer.base.errors import BadInput

KEYS = f"ID ...   (required) as `jobs` lists them\n{ADDRESS}"


def main(words: Sequence[str]) -> int:
    """Waits until the jobs have ended. Exit code 0. Raises BadInput for an unknown job."""
    # The parser of words key=value knows no ids, so these are taken out before it.
    ids = [word for word in words if "=" not in word and not word.startswith("-")]
    values = parse([word for word in words if word not in ids], "pipegap stop", __doc__ or "", KEYS)
    address = values.pop("address", "")
    refuse_others(values, "pipegap stop")
    if not ids:
        raise BadInput("stop", "", "must name jobs: `pipegap jobs` lists their ids")
    with jobs_of(address) as client:
        job_ids = [str(job.submission_id) for job in sweep_jobs(client)]
        if unknown := sorted(set(ids) - set(job_ids)):
            raise BadInput("stop", unknown[0], f"must be one of {', '.join(job_ids) or 'no jobs'}")
        for job_id in ids:
            client.stop_job(job_id)
        for job_id in ids:
            print(f"job {job_id}: {wait_for_end(client, job_id).status.lower()}")
    print("a stopped sweep resumes from its checkpoints when it is submitted again")
    return 0
