"""Tracks a trial on Weights & Biases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from annotated_types import Gt, MinLen

from sweeps.tracking.store_id import store_id
from sweeps.tracking.tracker import About, numbers, summary
from trainer.record import Row


class WandbTracker:
    """One run a trial, named by the store and the trial, so that each attempt goes on with it.

    Rows that an attempt repeats after a checkpoint are logged again: every chart's x is `update`,
    where they lie on those of the attempt before, being equal to the last bit. Offline each attempt
    is a folder of its own; `wandb sync` joins those of one run in the order of their start.
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
        import wandb  # slow, and known here alone

        folder = about.store / dir
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            init_timeout=init_timeout,
            finish_timeout=max(about.wait, 0.1),  # 0: for ever
            silent=True,
            console="off",  # the output is the process's, which runs other trials too
            stop_fn=_ignore,  # else it interrupts the process
            symlink=False,  # which processes side by side would fight for
            disable_git=True,  # its remote's URL may hold a password; result.json has the commit
            disable_code=True,
            save_code=False,
            x_disable_meta=True,  # command lines of Ray's workers hold keys of the cluster
            x_save_requirements=False,  # takes longer than the rest of the start
        )
        optimizer = about.choices["optimizer"]
        self._run = wandb.init(
            project=project,
            entity=entity,
            mode=mode,
            dir=str(folder),
            id=f"{store_id(about.store)}-{about.trial_id}",
            resume="allow",
            reinit="create_new",  # a run of the same process may still be finishing
            name=f"{optimizer} {about.arm} seed {about.config['seed']}",
            group=about.sweep,
            job_type=about.arm,
            tags=sorted({*tags, *about.sweep.split("-"), about.arm, optimizer}),
            config={
                **about.config,
                "choice": {**about.choices, "arm": about.arm, "series": f"{optimizer} {about.arm}"},
            },
            settings=settings,
        )
        self._run.define_metric("update")
        self._run.define_metric("*", step_metric="update")

    def log(self, row: Row) -> None:
        """See `Tracker`."""
        self._run.log(dict(numbers(row)))

    def finish(self, outcome: Row) -> None:
        """See `Tracker`."""
        self._run.summary.update(summary(outcome))
        self._run.finish(exit_code=int(outcome["status"] == "failed"))


def _ignore() -> None:
    """A run that is stopped on the web goes on: what runs is the driver's to say."""
