"""Ends jobs of a Ray cluster: their running trials save a checkpoint first."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sweeps.jobs import ended, jobs_of, ours, split
from trainer.errors import BadInput


def main(words: Sequence[str]) -> int:
    """Waits for their end. Raises BadInput for a job that the cluster does not know."""
    parser = argparse.ArgumentParser(prog="python -m sweeps stop", description=__doc__)
    parser.add_argument("words", nargs="+", metavar="ID", help="as `jobs` lists them; address=URL")
    own, ids = split(parser.parse_args(words).words, address="")
    with jobs_of(own["address"]) as client:
        known = [str(job.submission_id) for job in ours(client)]
        if unknown := sorted(set(ids) - set(known)):
            raise BadInput("stop", unknown[0], f"must be one of {', '.join(known) or 'no jobs'}")
        for job_id in ids:
            client.stop_job(job_id)
        for job_id in ids:
            print(f"job {job_id}: {ended(client, job_id).status.lower()}")
    print("submitted again, a stopped one goes on from its checkpoints")
    return 0
