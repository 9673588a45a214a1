"""Lists the jobs of a Ray cluster that are sweeps."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime

from sweeps.jobs import jobs_of, ours, split
from trainer.errors import BadInput


def main(words: Sequence[str]) -> int:
    """A line a job, the oldest first: id, status, start, what it runs."""
    parser = argparse.ArgumentParser(prog="python -m sweeps jobs", description=__doc__)
    parser.add_argument("keys", nargs="*", metavar="address=URL")
    own, unknown = split(parser.parse_args(words).keys, address="")
    if unknown:
        raise BadInput(unknown[0], "", "must be address=URL")
    with jobs_of(own["address"]) as client:
        for job in ours(client):
            started = datetime.fromtimestamp((job.start_time or 0) / 1000).isoformat(" ", "seconds")
            what = job.entrypoint.removeprefix("exec ")
            print(f"{job.submission_id}  {job.status:<9}  {started}  {what}")
    return 0
