"""Sends a sweep to a Ray cluster, as a job that runs `python -m sweeps` there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sweeps.jobs import follow, jobs_of, split, submit
from sweeps.request import request
from sweeps.shared import require_shared
from sweeps.words import take_flag
from trainer.errors import BadInput


def main(words: Sequence[str]) -> int:
    """Exit code: the job's, or 0 if it is not followed, 130 if it is followed no more."""
    own, asked = split(_parser().parse_args(words).keys, address="", follow="true", again="false")
    follows, again = take_flag(own, "follow"), take_flag(own, "again")
    wish = request(asked)
    if wish.dry_run:
        raise BadInput("dry_run", "true", "must be false: the plan is made without a cluster")
    require_shared(wish)
    with jobs_of(own["address"]) as client:
        job_id = submit(client, wish.label, asked, again)
        return follow(client, job_id) if follows else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweeps submit",
        description="Runs a sweep as a job of a Ray cluster: the words are those of a run. The "
        "same words find the same job, unless it failed or was stopped.",
        epilog="results=, data.path=  absolute paths, on storage that all nodes share\n"
        "address=  of the cluster, e.g. http://HEAD:8265 (default: RAY_API_SERVER_ADDRESS)\n"
        "follow=   false submits only; true shows the log and ends as the job does\n"
        "again=    true runs a sweep again that is done, e.g. after its store was pruned",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("keys", nargs="+", metavar="key=value")
    return parser
