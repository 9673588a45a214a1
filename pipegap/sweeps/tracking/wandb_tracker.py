"""Tracks a trial on Weights & Biases."""

import os
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Gt, MinLen

from pipegap.sweeps.tracking.tracker import About, numbers, summary
from pipegap.trainer.base.errors import Status
from pipegap.trainer.base.places import cut
from pipegap.trainer.folder.wellformed import Row

LONGEST_NAME, LONGEST_TAG = 128, 64
"""Letters that wandb takes for the name of a run, and for a tag or a type of job."""
ID_FILE = "store_id"
WRITE_TIMEOUT = 5.0
"""Seconds to wait for the process that created the file to write it."""


class WandbTracker:
    """One run per trial, which all attempts share: its id is made of the store's and the trial's.

    Rows that an attempt repeats after a checkpoint are logged again. They are equal to the last
    bit, and every chart's x is `update`, so that they lie on the earlier ones. Offline each attempt
    has a folder of its own; `wandb sync` joins those of one run in the order of their start.
    """

    def __init__(
        self,
        about: About,
        *,
        project: Annotated[str, MinLen(1)],
        entity: str | None,
        mode: Literal["offline", "online"],
        tags: Sequence[str],
        dir: str,
        init_timeout: Annotated[float, Gt(0)],
    ) -> None:
        import wandb  # slow: only imported if it is used

        os.environ.pop("WANDB_SWEEP_ID", None)  # with it wandb gives a run an id of its own
        folder = about.store / dir
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            init_timeout=init_timeout,
            finish_timeout=max(about.wait, 0.1),  # 0: for ever
            silent=True,
            console="off",  # the process, which runs other trials too, owns the output
            stop_fn=_ignore,  # the default interrupts the process
            symlink=False,  # concurrent processes would compete for it
            disable_git=True,  # its remote's URL may hold a password; result.json has the commit
            disable_code=True,
            save_code=False,
            x_disable_meta=True,  # command lines of Ray's workers hold keys of the cluster
            x_save_requirements=False,  # takes longer than all the rest of the start
        )
        optimizer = about.choices["optimizer"]
        run_tags = [*tags, *about.sweeps, about.arm, optimizer]
        self._run = wandb.init(
            project=project,
            entity=entity,
            mode=mode,
            dir=str(folder),
            id=f"{read_store_id(about.store)}-{about.trial_id}",
            resume="allow",
            reinit="create_new",  # a run of the same process may still be finishing
            name=cut(about.name, LONGEST_NAME),
            group=about.sweeps[0],  # a run has one group; the dashboard finds it by its tags
            job_type=cut(about.arm, LONGEST_TAG),
            tags=sorted({cut(tag, LONGEST_TAG) for tag in run_tags}),
            config={
                **about.config,
                "choice": {**about.choices, "arm": about.arm, "series": f"{optimizer} {about.arm}"},
            },
            settings=settings,
        )
        self._run.define_metric("update")
        self._run.define_metric("*", step_metric="update")

    @staticmethod
    def note(store: Path, keys: Mapping[str, Any]) -> str:
        """How runs that lie on this machine alone are uploaded; empty if they do not."""
        runs = f"{shlex.quote(str(store / keys['dir']))}/wandb/offline-run-*"
        return f"offline: `wandb sync {runs}` uploads the runs" * (keys["mode"] == "offline")

    def log(self, row: Row) -> None:
        """See `Tracker`."""
        self._run.log(dict(numbers(row)))

    def finish(self, outcome: Row) -> None:
        """See `Tracker`."""
        self._run.summary.update(summary(outcome))
        self._run.finish(exit_code=int(outcome["status"] == Status.FAILED))


def _ignore() -> None:
    """Ignore that a run is stopped on the web: only the driver stops trials."""


def read_store_id(store: Path) -> str:
    """Return the id of a store: 8 hexadecimal digits in a file of it, made if there is none yet.

    By the id wandb tells trials of two stores apart. If several processes make it at once, one of
    them decides. Raises OSError if the file can be neither read nor written.
    """
    path = store / ID_FILE
    # The leases need exclusive creation as well. Not every file system has hard links.
    with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
        file.write(f"{secrets.token_hex(4)}\n")
    deadline = time.monotonic() + WRITE_TIMEOUT
    while not (text := path.read_text("utf-8")).endswith("\n"):
        if time.monotonic() > deadline:
            raise OSError(f"{path} is not whole: delete it")
        time.sleep(0.01)
    return text.strip()
