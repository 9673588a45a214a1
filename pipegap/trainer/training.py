"""Trains the parts of one trial from drain to drain, evaluates, records, knows how far it is."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pipegap.trainer.base.errors import BadInput, Status, Stopped
from pipegap.trainer.base.resources import (
    device_name,
    peak_memory_bytes,
    random_state,
    restore_random_state,
)
from pipegap.trainer.config.identity import made_by, provenance
from pipegap.trainer.config.plan import Plan
from pipegap.trainer.data.tokenizers import tokenizer_of, write_tokenizer
from pipegap.trainer.executors.executor import Diverged, Executor, Update
from pipegap.trainer.folder import record
from pipegap.trainer.folder.record import TrialFolder
from pipegap.trainer.folder.wellformed import Row, trial_folder
from pipegap.trainer.models.export import save_final
from pipegap.trainer.parts import Parts
from pipegap.trainer.ranks.spawn import AskedToStop
from pipegap.trainer.schedules.operations import Schedule, delays
from pipegap.trainer.stages.probe import summary

Config = Mapping[str, Any]
Report = Callable[[Row], None]


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
        # An update that is compared runs between two drains of its own: its fresh gradient is of
        # the weights that the drain leaves, and no other batch is in flight then.
        marks = merge(
            sorted(self.phases),
            self._each(self.eval_every),
            self._each(self.checkpoint_every),
            self._each(self.compare_every),
            (update + 1 for update in self._each(self.compare_every)),
        )
        # `merge` sorts, `groupby` drops equal marks. The end is the last of `phases`.
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
        """Starts the clock of updates `first` to `last` − 1, and counts their delays.

        They are counted from the operations that will be executed, not from what the schedule says.
        """
        for operations in self._schedule.operations(first, last):
            for stage, delays_of_stage in delays(operations).items():
                self.delays[stage] = max(self.delays[stage], *delays_of_stage)
        # What was done since the last update, such as an evaluation, is no training.
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
        """Goes on from the `state` in a checkpoint, except its delays: the checkpoint may be of
        another trial, with another schedule."""
        self.num_done, self.train_seconds = state["num_updates"], state["train_seconds"]
        self.val_loss = state["val_loss"]


def outcome(
    config: Config, plan: Plan, device: str, status: Status, num_updates: int, **more: object
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


STOP_WITHIN = 10.0
"""Most seconds between two drains, and so until a trial that is asked to stop can do so."""


def nowhere(row: Row) -> None:
    """Ignores every row."""


def restored_other(config: Config, executor: Executor) -> Row | None:
    """Restores the executor from the checkpoint of another trial; returns the checkpoint's state.

    `resume_from` names the checkpoint; None is returned if it names none. Raises BadInput if the
    trial cannot go on from there.
    """
    path = config["resume_from"]
    if path is None:
        return None
    state = record.load_other(Path(path), config)
    try:
        executor.restore(state["executor"])
    except LookupError as error:
        raise BadInput("resume_from", path, str(error)) from None
    return state


class Job(NamedTuple):
    """A trial to train, the callback that gets its rows, and the one that is called between drains
    to see whether the trial is to stop."""

    config: Config
    plan: Plan
    report: Report = nowhere
    asked_to_stop: AskedToStop = lambda: False

    def folder(self, kind: type[TrialFolder] = TrialFolder) -> TrialFolder:
        """The trial's folder, for a process that writes its record or only reads it."""
        return kind(trial_folder(self.config, self.plan.trial_id), self.plan.trial_id)


class Training:
    """One trial while it trains.

    The callback `on_finish` gets the trial's folder before the result is written.
    """

    def __init__(
        self,
        job: Job,
        device: torch.device,
        parts: Parts,
        executor: Executor,
        folder: TrialFolder,
        on_finish: Callable[[Path], None],
    ) -> None:
        self._config, self._plan, self._report, self._asked_to_stop = job
        self._device, self._parts, self._executor = device, parts, executor
        self._folder, self._on_finish = folder, on_finish
        schedule, keys = parts.schedule, ("eval_every", "checkpoint_every", "diagnostics")
        intervals = (job.config[key] for key in keys)
        self._agenda = Agenda(job.plan.num_updates, schedule.phases, *intervals)
        self._progress = TrialProgress(job.config, schedule)
        self._stride = 1  # updates to the next look; from the measured seconds, once there are any
        self._made_by = made_by(device_name(device))
        self._resume()

    def run(self) -> Row:
        """Trains to the end or to divergence; records and returns the result.

        Raises Stopped, after a checkpoint, once it is asked to stop.
        """
        try:
            for drain in self._agenda.drains(self._progress.num_done):
                self._advance_to(drain)
        except Diverged as diverged:
            return self._finish(Status.DIVERGED, diverged_at=diverged.batch)
        return self._finish(Status.COMPLETED, final_val_loss=self._progress.val_loss)

    def _advance_to(self, drain: int) -> None:
        """Trains until `drain` updates are done.

        The trial drains in between, at least every STOP_WITHIN seconds, to see whether it is asked
        to stop.
        """
        last = self._progress.num_done
        while last < drain:
            first, last = last, min(drain, last + self._stride)
            start = time.monotonic()
            self._advance(first, last)
            seconds = (time.monotonic() - start) / (last - first)
            # Clocks and signals differ from rank to rank, and a drain only ends if all take part.
            # So all take the decision of rank 0.
            stop, self._stride = self._executor.agreed(
                (self._asked_to_stop(), max(1, int(STOP_WITHIN / seconds)))
            )
            if stop and last < self._plan.num_updates:
                if not self._agenda.saves_after(last):  # else the end of the context waits for it
                    self._save(wait=True)
                raise Stopped(last)

    def _advance(self, first: int, last: int) -> None:
        """Trains on batches `first` to `last` − 1, then does what is due after them."""
        evaluates, compares = self._agenda.evaluates_after(last), self._agenda.compares(first)
        last_rows: list[Row] = []  # the last row, which gets what is measured after the drain

        def on_update(update: Update) -> None:
            row = self._progress.row(update)
            # A row is written once and whole: this one waits for its measurements.
            if (evaluates or compares) and update.batch == last - 1:
                last_rows.append(row)
            else:
                self._write(row)

        if compares:  # before the update: the probe makes a step from W(t) and takes it back
            self._executor.probe(first)
        self._progress.start(first, last)
        self._executor.run(first, last, on_update)
        for row in last_rows:
            if compares:
                row["diagnostics"] = summary(self._executor.take_comparison())
            if evaluates:
                self._evaluate(row)
            else:
                self._write(row)
        # The weights before the checkpoint: a trial that is killed in between makes them again,
        # while a trial that resumed from the checkpoint would lack them.
        self._keep_weights(last)
        if self._agenda.saves_after(last):
            # A GPU would be idle meanwhile. On a CPU the same core has to do both.
            self._save(wait=self._device.type != "cuda")

    def _save(self, wait: bool) -> None:
        may_change = not self._executor.state_is_a_copy
        self._folder.save(self._progress.num_done, self._state(), wait, may_change=may_change)

    def _keep_weights(self, num_done: int) -> None:
        """Keeps the weights for averages, where a checkpoint is due and at the end."""
        number, is_last = self._config["save_last"], num_done == self._plan.num_updates
        if number and (is_last or self._agenda.saves_after(num_done)):
            self._folder.keep_weights(num_done, self._executor.weights(), number)

    def _write(self, row: Row) -> None:
        self._folder.append(row)
        self._report(row)

    def _evaluate(self, row: Row) -> None:
        """Adds the validation loss of W(t + 1) to the row of update t.

        Raises Diverged if it is not finite or, after the warm-up, above ln(vocabulary) + 1.
        """
        is_last = row["update"] + 1 == self._plan.num_updates
        tokens = None if is_last else self._config["eval_tokens"]
        batches = self._parts.validation.batches(self._config["eval_batch_size"], tokens)
        loss = self._executor.evaluate(batch.to(self._device) for batch in batches)
        self._progress.val_loss = loss
        row["val_loss"] = loss if math.isfinite(loss) else None
        self._write(row)
        # ln(vocabulary) is the loss of a uniform guess. While the learning rate still rises, a loss
        # above it does not say that the trial is lost.
        is_warm = any(self._parts.lr_factor(t) >= 1 for t in range(row["update"] + 1))
        limit = math.log(self._parts.model.vocab_size) + 1 if is_warm else math.inf
        if not loss < limit:  # also if it is not a number
            raise Diverged(row["update"])

    def _state(self) -> Row:
        return {
            "trial_id": self._plan.trial_id,
            "config": dict(self._config),
            "executor": self._executor.state(),
            "random": random_state(self._device),
            **self._progress.state(),
            "made_by": self._made_by,
        }

    def _resume(self) -> None:
        """Resumes from the newest checkpoint, else from `resume_from`, else starts anew."""
        path = self._executor.agreed(self._folder.newest_checkpoint())
        if path is not None:
            state = record.load_own(path, self._plan.trial_id)
            self._executor.restore(state["executor"])
            self._go_on(state)
            self._progress.delays = state["delays"]  # not another trial's: its schedule may differ
        elif (other_state := restored_other(self._config, self._executor)) is not None:
            self._go_on(other_state)
        # Resuming renames the file: by then every rank must have read it.
        self._executor.agreed(None)
        self._progress.seconds_before = self._folder.resume(self._progress.num_done, path)

    def _go_on(self, state: Row) -> None:
        self._progress.restore(state)
        restore_random_state(state["random"], self._device)

    def _finish(self, status: Status, **outcome_keys: object) -> Row:
        """Records and returns the result."""
        progress, name = self._progress, device_name(self._device)
        of_any = outcome(self._config, self._plan, name, status, progress.num_done, **outcome_keys)
        result = of_any | {
            "tokens": progress.tokens,
            "epochs": self._parts.batches.epochs(progress.num_done),
            "wall_seconds": progress.wall_seconds,
            "tokens_per_second": progress.tokens / max(progress.train_seconds, 1e-9),
            "delays": progress.delays,
            "layers_by_stage": self._plan.layers_by_stage,
            "peak_memory_bytes": peak_memory_bytes(self._device),
            **self._executor.usage(),
        }
        if self._config["save_final"]:
            weights = self._executor.weights()  # on every rank: they send theirs to rank 0
            if self._folder.records:
                save_final(weights, self._parts.model, self._folder.path)
                self._keep_tokenizer(self._folder.path / "final")
        self._on_finish(self._folder.path)
        return self._folder.finish(result)

    def _keep_tokenizer(self, pretrained: Path) -> None:
        """Writes the tokenizer beside weights of transformers, if the data knows its tokenizer."""
        with suppress(BadInput):  # data of the user's own may have no tokenizer
            if pretrained.is_dir():
                write_tokenizer(*tokenizer_of(self._config["data"]), pretrained)
