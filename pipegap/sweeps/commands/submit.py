"""Sends a sweep to a Ray cluster, as a job that runs `pipegap sweep` there.

e.g. pipegap submit sweep=main scale=135m results=/shared/results dry_run=true
"""

from collections.abc import Sequence

from pipegap.sweeps.cluster.jobs import ADDRESS, follow, jobs_of, require_shared, submit, take_along
from pipegap.sweeps.request.command_line import NOTIFY, parse_request
from pipegap.trainer.base.cli import parse, take_choice, take_flag
from pipegap.trainer.base.errors import BadInput

KEYS = f"""\
the words of a run, sweep= (required) among them; dry_run=true prints the plan and sends nothing
results=, data.path=  absolute paths, on storage that all nodes share
code=     a folder of your own code, which is sent with the job, as are sweep files of your own
{ADDRESS}
follow=   false submits only; true shows the log and ends as the job does
again=    true runs a sweep again that succeeded, e.g. after its store was pruned

The same words find the same job, unless it failed or was stopped."""


def main(words: Sequence[str]) -> int:
    """Exit code: the job's; 0 if it is not followed, 130 after Ctrl-C, 1 if the cluster is lost."""
    values = parse(words, "pipegap submit", __doc__ or "", KEYS)
    if "notify" in values:  # the words of a job are its command line, which all may read
        allowed = f"is a secret, which Ray would show: set {NOTIFY} where ray start runs"
        raise BadInput("notify", "a URL", allowed)
    address, resubmit = values.pop("address", ""), take_flag(values, "again")
    follows = take_choice(values, "follow", ("true", "false")) == "true"
    request = [f"{key}={value}" for key, value in values.items()]
    parsed = parse_request(request)  # a mistake in the words is found here, not in the job's log
    if parsed.dry_run:
        from pipegap.sweeps.commands import run  # slow: it brings torch

        return run.main(request)
    require_shared(parsed)
    job_words, user_files = take_along(values, parsed)
    with jobs_of(address) as client:
        job_id = submit(client, parsed.label, job_words, resubmit, user_files)
        return follow(client, job_id) if follows else 0
