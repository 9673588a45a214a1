"""How far a trial is: when it evaluates, saves or compares, what it has counted, how it ended."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from typing import Any

from pipegap.trainer.base.status import Status
from pipegap.trainer.config.identity import provenance
from pipegap.trainer.config.plan import Plan
from pipegap.trainer.executors.gradients import Update
from pipegap.trainer.schedules.operations import Schedule, delays

Row = dict[str, Any]


@dataclass(frozen=True)
class Agenda:
    """When a trial has to drain. Numbers are in updates; None means never.

    The schedule changes at `phases`.
    """

    num_updates: int
    phases: Iterable[int]
    eval_every: int
    checkpoint_every: int
    compare_every: int | None

    def evaluates_after(self, num_done: int) -> bool:
        """Whether the validation loss is due after `num_done` updates; at the end it always is."""
        return num_done == self.num_updates or num_done % self.eval_every == 0

    def saves_after(self, num_done: int) -> bool:
        """Whether a checkpoint is due after `num_done` updates; none is at the end."""
        return num_done < self.num_updates and num_done % self.checkpoint_every == 0

    def compares(self, update: int) -> bool:
        """Whether `update` is compared with the one that a fresh gradient would make."""
        return self.compare_every is not None and update % self.compare_every == 0

    def drains(self, num_done: int) -> Iterator[int]:
        """Yields how many updates are done at each drain after `num_done` updates, ascending."""
        marks = merge(
            sorted(self.phases),
            self._each(self.eval_every),
            self._each(self.checkpoint_every),
            self._each(self.compare_every),
            (update + 1 for update in self._each(self.compare_every)),
        )
        yield from (mark for mark, _ in groupby(marks) if mark > num_done)

    def _each(self, every: int | None) -> Iterable[int]:
        return range(0, self.num_updates, every) if every is not None else ()


class TrialProgress:
    """The counts and times of a trial so far, whose attempts add up."""

    def __init__(self, config: Mapping[str, Any], schedule: Schedule) -> None:
        self._tokens_per_update = config["batch_size"] * config["seq_len"]
        self._schedule = schedule
        self._started = self._last_tick = time.monotonic()
        self.seconds_before = 0.0
        """Seconds of earlier attempts."""
        self.num_done, self.train_seconds, self.val_loss = 0, 0.0, math.nan
        self.delays = [0] * schedule.num_stages
        """The largest delay of each stage that was counted."""

    @property
    def tokens(self) -> int:
        """Tokens that were trained on."""
        return self.num_done * self._tokens_per_update

    @property
    def wall_seconds(self) -> float:
        """Seconds of all attempts."""
        return self.seconds_before + time.monotonic() - self._started

    def start(self, first: int, last: int) -> None:
        """Starts the clock of updates `first` to `last` − 1, and counts their delays."""
        for operations in self._schedule.operations(first, last):
            for stage, delays_of_stage in delays(operations).items():
                self.delays[stage] = max(self.delays[stage], *delays_of_stage)
        self._last_tick = time.monotonic()

    def row(self, update: Update) -> Row:
        """Counts an update that was applied; returns its row of metrics.jsonl."""
        time_now = time.monotonic()
        seconds, self._last_tick = time_now - self._last_tick, time_now
        self.train_seconds += seconds
        self.num_done = update.batch + 1
        return {
            "update": update.batch,
            "train_loss": update.loss,
            "lr": update.lr,
            "grad_norm": update.grad_norm,
            "tokens_per_second": self._tokens_per_update / seconds,
            "wall_seconds": self.wall_seconds,
        }

    def state(self) -> Row:
        """What a checkpoint keeps."""
        return {
            "num_updates": self.num_done,
            "delays": [*self.delays],
            "train_seconds": self.train_seconds,
            "val_loss": self.val_loss,
        }

    def restore(self, state: Row) -> None:
        """Goes on from the `state` in a checkpoint, whose delays may be another trial's."""
        self.num_done, self.train_seconds = state["num_updates"], state["train_seconds"]
        self.val_loss = state["val_loss"]


def outcome(
    config: Mapping[str, Any],
    plan: Plan,
    device: str,
    status: Status,
    num_updates: int,
    **more: object,
) -> Row:
    """Return what result.json says of any trial that ended, and `more`."""
    return {
        **provenance(config, plan.trial_id, plan.data_hash, device),
        "status": status,
        "final_val_loss": None,
        "diverged_at": None,
        "seed": config["seed"],
        "looks_ahead": plan.looks_ahead,
        "num_updates": num_updates,
        "num_parameters": plan.num_parameters,
        "num_active_parameters": plan.num_active_parameters,
        **more,
    }
