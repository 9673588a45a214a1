"""Ends jobs of a Ray cluster: their running trials save a checkpoint first."""

from __future__ import annotations

from collections.abc import Sequence

from sweeps.jobs import ADDRESS, ended, jobs_of, ours
from trainer.errors import BadInput
from trainer.words import parse, refuse_others

KEYS = f"ID ...   as `jobs` lists them\n{ADDRESS}"


def main(words: Sequence[str]) -> int:
    """Waits for their end. Raises BadInput for a job that the cluster does not know."""
    ids = [word for word in words if "=" not in word and not word.startswith("-")]
    given = parse(
        [word for word in words if word not in ids], "python -m sweeps stop", __doc__ or "", KEYS
    )
    address = given.pop("address", "")
    refuse_others(given, "python -m sweeps stop")
    if not ids:
        raise BadInput("stop", "", "must say which: jobs lists their ids")
    with jobs_of(address) as client:
        known = [str(job.submission_id) for job in ours(client)]
        if unknown := sorted(set(ids) - set(known)):
            raise BadInput("stop", unknown[0], f"must be one of {', '.join(known) or 'no jobs'}")
        for job_id in ids:
            client.stop_job(job_id)
        for job_id in ids:
            print(f"job {job_id}: {ended(client, job_id).status.lower()}")
    print("submitted again, a stopped one goes on from its checkpoints")
    return 0
