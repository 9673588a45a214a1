"""Sweeps as jobs of a Ray cluster: what is sent there, and one job per request, followed or left
alone.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from pipegap.sweeps.request.command_line import Request
from pipegap.sweeps.request.schema import Sweep, is_path, keys
from pipegap.trainer.base.build import code_digest as folder_digest
from pipegap.trainer.base.cli import split_word
from pipegap.trainer.base.errors import BadInput, Stopped, Unavailable, one_line
from pipegap.trainer.base.places import CODE_ROOT, CONF, PACKAGE, cut
from pipegap.trainer.config.identity import COMMIT, code_version

# What a job sends to a cluster: the code, the user's own code and files, never a key.
#
# Keys belong in the environment of the nodes. The store and the data must lie on storage that all
# nodes share, under the same paths.

CODE_KEY = "code"
"""The word that names a folder of the user's own code."""
OWN_CODE, OWN_FILES = "own_code", "own_files"
"""What that folder, and the one with the files, are called in a job."""
EXCLUDES = ["/*", "!/.", f"!/{PACKAGE.name}", f"!/{OWN_CODE}", f"!/{OWN_FILES}", "__pycache__"]
"""What a job needs are three folders. Everything else that lies beside them stays here, by lines as
of a .gitignore: the last pattern that matches decides."""

SENT = (".py", ".yaml")
"""Ends of the names of files of the user's code that are sent."""

PASSED_ON = ("WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT")
"""Environment variables that a job gets from here. Everyone who reaches the cluster can read them:
keys (WANDB_API_KEY, RAY_AUTH_TOKEN) belong in the environment in which its nodes start Ray."""

STOP_WAIT = 60
"""Seconds that a job has to end when it is stopped, before Ray kills it (its default is 3): its
trials have `driver.GRACE` of them to save a checkpoint. No report is drawn then."""
PATHS = ("data.path", "data.shards", "resume_from")
"""Keys of a trial that name files outside its folder."""
SHARED = "must be given as an absolute path, on storage that all nodes share"


@dataclass(frozen=True)
class Own:
    """A folder of code, and files by their paths in the job."""

    code: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def digests(self) -> list[str]:
        """Hashes of all that is sent; empty if nothing is."""
        folders = [] if self.code is None else [folder_digest(self.code)]
        contents = (f"{name}\0".encode() + path.read_bytes() for name, path in self.files.items())
        return [*folders, *(hashlib.sha256(content).hexdigest() for content in contents)]


def take_along(values: Mapping[str, str], request: Request) -> tuple[list[str], Own]:
    """Return the words of a job that asks for what `values` does, and what it needs of the user's.

    The folder of code is that of the words, or else of the sweep files. Raises BadInput if these
    name several, or one elsewhere than in `base`, which a word of the command line replaces.
    """
    code = values.get(CODE_KEY) or _code_of(request.sweeps.values())
    words, files = dict(values), dict[str, Path]()
    for key in ("sweep", "search"):  # the words whose values may be files
        names = values.get(key, "").split(",")
        sent = {name: f"{OWN_FILES}/{key}/{Path(name).name}" for name in names if is_path(name)}
        files |= {target: Path(name) for name, target in sent.items()}
        if sent:
            words[key] = ",".join(sent.get(name, name) for name in names)
    if code is not None:
        words[CODE_KEY] = OWN_CODE
    return [f"{key}={value}" for key, value in words.items()], Own(code, files)


def _code_of(sweeps: Iterable[Sweep]) -> str | None:
    """Return the folder that the sweeps name; None if they name none."""
    folders = set()
    for sweep in sweeps:
        if CODE_KEY in keys(sweep.words[len(sweep.base) :]):
            raise BadInput(CODE_KEY, "", "must be in base, or on the command line, to be sent")
        folders |= {value for key, value in map(split_word, sweep.base) if key == CODE_KEY}
    if len(folders) > 1:
        raise BadInput(CODE_KEY, ", ".join(sorted(folders)), "must be one folder, which is sent")
    return folders.pop() if folders else None


def runtime_env(root: Path = CODE_ROOT) -> dict[str, Any]:
    """Return the environment of a job for Ray's Jobs API; `root` holds the folders to send."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    variables = {COMMIT: code_version() or "", "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT)}
    return {"working_dir": str(root), "excludes": EXCLUDES, "env_vars": {**passed_on, **variables}}


def code_digest(root: Path = CODE_ROOT) -> str:
    """Return a hash of the names and contents of all files below `root` that a job sends."""
    digest = hashlib.sha256()
    # Sorted: the order in which a file system lists them must not change the job's name.
    walked = os.walk(root / PACKAGE.name)
    for path in sorted(Path(folder, name) for folder, _, names in walked for name in names):
        if "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@contextmanager
def sent_with(user_files: Own) -> Iterator[Path]:
    """Yield a folder with what a job needs: the checkout, or a copy beside the user's own files."""
    if user_files == Own():
        yield CODE_ROOT  # EXCLUDES leaves out what lies beside the package
        return
    with TemporaryDirectory(prefix="pipegap-job-") as folder:
        copytree(PACKAGE, Path(folder, PACKAGE.name), ignore=ignore_patterns("__pycache__"))
        if user_files.code is not None:
            copytree(user_files.code, Path(folder, OWN_CODE), ignore=_not_sent)
        for name, path in user_files.files.items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            copyfile(path, Path(folder, name))
        yield Path(folder)


def _not_sent(folder: str, names: list[str]) -> list[str]:
    """Return what copytree leaves out of the user's folder: other files, and hidden folders."""
    files = [name for name in names if Path(folder, name).is_file() and not name.endswith(SENT)]
    return [*files, *(name for name in names if name.startswith((".", "__pycache__")))]


def require_shared(request: Request) -> None:
    """Raise BadInput for a relative path: a job runs in a copy of the code, on another machine."""
    pairs = (word.partition("=") for sweep in request.sweeps.values() for word in sweep.words)
    words = [(key, value) for key, _, value in pairs]
    for key, path in [("results", str(request.results)), *words]:
        if key in ("results", *PATHS) and not os.path.isabs(path):
            raise BadInput(key, path, SHARED)
    values = dict(words)
    keys_of_data = _keys_of_data(values.get("data", ""), values.get(CODE_KEY, ""))
    for key in PATHS:
        if key in keys_of_data and key not in values:
            raise BadInput(key, "", SHARED)


def _keys_of_data(choice: str, code: str) -> set[str]:
    """Return the keys of a choice of data in conf/ or in the user's code; of any other choice, the
    key of prepared data."""
    for folder in (CONF, Path(code)):
        path = folder / "data" / f"{choice}.yaml"
        if choice and path.is_file():
            return {f"data.{key}" for key in yaml.safe_load(path.read_text("utf-8"))}
    return {"data.path"}


# The jobs: one per request, submitted once, and followed from here or left alone.

Client = Any
Job = Any
"""Ray's JobSubmissionClient, and its JobDetails."""

NOTHING = Own()
VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Variables from which Ray's client reads the address; the first that is set counts."""
ADDRESS = "address=  of the cluster, e.g. http://HEAD:8265 (default: RAY_API_SERVER_ADDRESS)"
LABEL, LONGEST_LABEL = "sweep", 100
"""The key of a job's metadata that marks it as a sweep; bytes of a label in a job's name, which is
one of Ray's files."""
ANSWER_WITHIN = 10.0
"""Seconds that a cluster has to accept a connection, and as many to answer."""
AGENT_WITHIN = 120.0
"""Seconds that the agent of a head has to start, which takes the jobs. The head answers before."""
REFUSED = re.compile(r"Request failed with status code (?P<status>\d+)")
"""How Ray's client begins what it raises when a cluster does not do what it was asked to."""
RAYLET = r"^[^/]*\(/.*\)/lib/python[0-9.]*/site-packages/ray/_raylet.so$"
INTERPRETER = (
    rf"python=$(sed -n 's#{RAYLET}#\1/bin/python#p' /proc/$PPID/maps | head -n 1); "
    '[ -x "$python" ] || python=python; exec "$python"'
)
"""Shell words that run the Python in which Ray runs there, a process of which started the shell.
The PATH may name another one, where nobody activated an environment before `ray start`."""
POLL_EVERY = 0.5
"""Seconds between two looks at a job that is about to end."""
DETACHED, LOST = 130, 1
"""Exit codes after Ctrl-C, and after a lost connection, while a job is followed."""


@contextmanager
def jobs_of(address: str) -> Iterator[Client]:
    """Yield the client of the cluster at `address`; if it is empty, Ray's variables say where.

    Raises BadInput if there is no address, it does not answer, or the token is wrong.
    """
    if address:
        os.environ[VARIABLES[0]] = address  # it would take precedence over an argument
    where = next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")
    if not where.startswith(("http://", "https://")):  # for any other Ray ends this process
        allowed = f"must be a cluster's Jobs API, e.g. http://HEAD:8265 (or set {VARIABLES[0]})"
        raise BadInput("address", where, allowed)
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it at its import
    import requests
    from ray.exceptions import AuthenticationError

    logging.disable(logging.WARNING)  # Ray names each folder that it does not send
    try:
        yield _client(where)
    except RuntimeError as error:
        if not (answer := REFUSED.match(str(error))):
            raise
        why = one_line(str(error).rstrip(" .\n").rpartition("\n")[2])  # of the head's traceback
        says = f"the cluster at {where} answers with status {answer['status']}"
        raise Unavailable(f"{says}: {why}") from None
    except AuthenticationError as error:
        why = re.split(r"\n|\. ", str(error))[0]
        allowed = f"must be the token of the cluster at {where}, here or in RAY_AUTH_TOKEN_PATH"
        raise BadInput("RAY_AUTH_TOKEN", "(not shown)", f"{allowed} ({why})") from None
    except (ConnectionError, requests.ConnectionError):
        allowed = "must be a cluster's Jobs API (it no longer answers)"
        raise BadInput("address", where, allowed) from None
    finally:
        logging.disable(logging.NOTSET)


def _client(where: str) -> Client:
    import requests
    from ray.exceptions import RpcError
    from ray.job_submission import JobSubmissionClient

    try:
        requests.get(where, timeout=ANSWER_WITHIN)  # Ray would wait for ever
        return JobSubmissionClient()
    except (OSError, ValueError, RuntimeError, RpcError) as error:
        why = str(error).partition("\n")[0]
        raise BadInput("address", where, f"must be a cluster's Jobs API ({why})") from None


def sweep_jobs(client: Client) -> list[Job]:
    """Return the cluster's jobs that are sweeps, the oldest first."""
    jobs = [job for job in client.list_jobs() if LABEL in (job.metadata or {})]
    return sorted(jobs, key=lambda job: job.start_time or 0)


def job_name(label: str, words: Sequence[str], user_files: Own = NOTHING) -> str:
    """Return a job's name: equal for equal words, in any order, and equal code and own files."""
    wish = json.dumps([sorted(words), code_digest(), *user_files.digests])
    return f"{cut(label, LONGEST_LABEL)}-{hashlib.sha256(wish.encode()).hexdigest()[:12]}"


def submit(
    client: Client, label: str, words: Sequence[str], resubmit: bool, user_files: Own = NOTHING
) -> str:
    """Submit the sweep of `words` with the user's `user_files` code and files; return the job's id.

    At most one job runs the sweep at a time. A job that runs is returned, and so is a job that
    succeeded, unless `resubmit`. After a job that failed or was stopped, a new one is submitted.
    """
    name = job_name(label, words, user_files)
    attempts = {job.submission_id: job for job in sweep_jobs(client)}
    number = 1
    while f"{name}-{number}" in attempts:  # Ray takes an id once, even of a job that has ended
        number += 1
    last = attempts.get(f"{name}-{number - 1}")
    is_over = last is not None and last.status.is_terminal()
    if last is not None and (not is_over or (last.status == "SUCCEEDED" and not resubmit)):
        print(f"job {last.submission_id}: submitted before, {last.status.lower()}", flush=True)
        return str(last.submission_id)
    job_id = f"{name}-{number}"
    deadline, has_waited = time.monotonic() + AGENT_WITHIN, False
    with sent_with(user_files) as root:
        while True:
            try:
                client.submit_job(
                    entrypoint=f"{INTERPRETER} -m pipegap sweep {shlex.join(words)}",
                    submission_id=job_id,
                    runtime_env=runtime_env(root),
                    metadata={LABEL: label},
                )
                break
            except RuntimeError as error:
                if job_id in {job.submission_id for job in sweep_jobs(client)}:
                    break  # another process has just submitted the same
                answer = REFUSED.match(str(error))
                is_starting = answer is not None and answer["status"].startswith("5")
                if not is_starting or time.monotonic() > deadline:
                    raise
                if not has_waited:
                    print("waits for the cluster's head, which does not take jobs yet", flush=True)
                has_waited = True
                time.sleep(POLL_EVERY)
    print(f"job {job_id}: submitted", flush=True)
    return job_id


def follow(client: Client, job_id: str) -> int:
    """Print the job's log until the job ends; return its exit code.

    Returns DETACHED after Ctrl-C, which leaves the job alone, and LOST if the connection breaks.
    """
    from aiohttp import ClientError

    try:
        asyncio.run(_print_log(client, job_id))
        job = wait_for_end(client, job_id)
    except KeyboardInterrupt:
        print(
            f"\ndetached: job {job_id} runs on. The same command follows it again, "
            f"pipegap stop {job_id} ends it"
        )
        return DETACHED
    except (RuntimeError, ClientError) as error:
        print(f"lost job {job_id} ({error}): the same command looks for it again", file=sys.stderr)
        return LOST
    remedy = ": the same command submits it again and resumes it" * (job.status != "SUCCEEDED")
    print(f"job {job_id}: {job.status.lower()}{remedy}")
    return exit_code(job)


async def _print_log(client: Client, job_id: str) -> None:
    async for lines in client.tail_job_logs(job_id):
        print(lines, end="", flush=True)


def wait_for_end(client: Client, job_id: str) -> Job:
    """Wait until the job has ended; return its details."""
    while not (job := client.get_job_info(job_id)).status.is_terminal():
        time.sleep(POLL_EVERY)
    return job


def exit_code(job: Job) -> int:
    """Return the exit code of the job's command; a stopped job has none, and counts as stopped."""
    without: Mapping[str, int] = {"SUCCEEDED": 0, "STOPPED": Stopped.exit_code}
    if job.driver_exit_code is None:
        if job.status not in without:
            print(job.message)
        return without.get(job.status, 1)
    code = int(job.driver_exit_code)
    return code if code >= 0 else 128 - code  # 128 + signal, as in a shell
