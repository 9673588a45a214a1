"""Lists the jobs of a Ray cluster that are sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sweeps.jobs import ADDRESS, jobs_of, ours
from trainer.words import parse, refuse_others


def main(words: Sequence[str]) -> int:
    """A line a job, the oldest first: id, status, start, what it runs."""
    given = parse(words, "python -m sweeps jobs", __doc__ or "", ADDRESS)
    address = given.pop("address", "")
    refuse_others(given, "python -m sweeps jobs")
    with jobs_of(address) as client:
        for job in ours(client):
            started = datetime.fromtimestamp((job.start_time or 0) / 1000).isoformat(" ", "seconds")
            what = job.entrypoint.removeprefix("exec ")
            print(f"{job.submission_id}  {job.status:<9}  {started}  {what}")
    return 0
