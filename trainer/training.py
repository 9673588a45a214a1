"""Trains the parts of one trial from drain to drain, evaluates, and records."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trainer.progress import Agenda
from trainer.base.errors import BadInput, Stopped
from trainer.base.resources import (
    device_name,
    peak_memory_bytes,
    random_state,
    restore_random_state,
)
from trainer.base.status import Status
from trainer.config.identity import made_by, provenance
from trainer.config.plan import Plan
from trainer.data.chosen import tokenizer_of, write_tokenizer
from trainer.executors.executor import Executor
from trainer.executors.gradients import Diverged, Update
from trainer.folder import checkpoint
from trainer.folder.record import Row, TrialFolder
from trainer.models.export import save_final
from trainer.parts import Parts
from trainer.ranks.supervisor import AskedToStop
from trainer.schedules.operations import delays
from trainer.stages.probe import routing_summary, summary

Config = Mapping[str, Any]
Report = Callable[[Row], None]

STOP_WITHIN = 10.0
"""Most seconds between two drains, and so until a trial that is asked to stop can do so."""


def nowhere(row: Row) -> None:
    """The callback that ignores every row."""


def never() -> bool:
    """Returns False: nobody asks the trial to stop."""
    return False


def nothing(folder: Path) -> None:
    """Adds no file to a trial's folder."""


def restored_other(config: Config, executor: Executor) -> Row | None:
    """The state in the checkpoint of another trial that `resume_from` names, restored in the
    executor; None if it names none. Raises BadInput if the trial cannot go on from there.
    """
    other = config["resume_from"]
    if other is None:
        return None
    state = checkpoint.load_other(Path(other), config)
    try:
        executor.restore(state["executor"])
    except LookupError as error:
        raise BadInput("resume_from", other, str(error)) from None
    return state


class Training:
    """The parts of one trial and its progress.

    `asked_to_stop` is called between drains; the callback `on_finish` gets the trial's folder
    before the result is written.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        device: torch.device,
        parts: Parts,
        executor: Executor,
        folder: TrialFolder,
        report: Report,
        asked_to_stop: AskedToStop,
        on_finish: Callable[[Path], None] = nothing,
    ) -> None:
        self._config, self._plan, self._device = config, plan, device
        self._parts, self._executor = parts, executor
        self._folder, self._report, self._on_finish = folder, report, on_finish
        self._asked_to_stop = asked_to_stop
        self._agenda = Agenda(
            plan.num_updates,
            parts.schedule.phases,
            config["eval_every"],
            config["checkpoint_every"],
            config["diagnostics"],
            executor.observe_every,
        )
        self._started = self._last_tick = time.monotonic()
        self._num_done, self._train_seconds, self._stride = 0, 0.0, 1
        self._made_by = made_by(device_name(device))
        self._delays = [0] * self._parts.schedule.num_stages
        self._val_loss = math.nan
        self._resume()

    def run(self) -> Row:
        """Trains to the end or to divergence; records and returns the result.

        Raises Stopped, after a checkpoint, once it is asked to stop.
        """
        try:
            for drain in self._agenda.drains(self._num_done):
                self._advance_to(drain)
        except Diverged as diverged:
            return self._finish(Status.DIVERGED, None, diverged.batch)
        return self._finish(Status.COMPLETED, self._val_loss, None)

    def _advance_to(self, drain: int) -> None:
        """Trains until `drain` updates are done.

        It drains in between, at least every STOP_WITHIN seconds, to see whether it is asked to
        stop. All ranks drain after the same updates.
        """
        last = self._num_done
        while last < drain:
            first, last = last, min(drain, last + self._stride)
            started = time.monotonic()
            self._advance(first, last)
            seconds = (time.monotonic() - started) / (last - first)
            stop, self._stride = self._executor.agreed(
                (self._asked_to_stop(), max(1, int(STOP_WITHIN / seconds)))
            )
            if stop and last < self._plan.num_updates:
                self._save(wait=True)
                raise Stopped(last)

    def _advance(self, first: int, last: int) -> None:
        evaluates, compares = self._agenda.evaluates_after(last), self._agenda.compares(first)
        held: list[Row] = []

        def on_update(update: Update) -> None:
            row = self._row(update)
            if (evaluates or compares) and update.batch == last - 1:
                held.append(row)
            else:
                self._write(row)

        self._count_delays(first, last)
        if self._agenda.observes(first):
            self._executor.observe(first)
        if compares:
            self._executor.probe(first)
        self._last_tick = time.monotonic()
        self._executor.run(first, last, on_update)
        for row in held:
            if compares:
                compared, choices = self._executor.take_comparison(), self._executor.take_choices()
                row["diagnostics"] = summary(compared) | routing_summary(choices)
            if evaluates:
                self._evaluate(row)
            else:
                self._write(row)
        if self._agenda.saves_after(last):
            # A GPU would be idle meanwhile. On a CPU the same core has to do both.
            self._save(wait=self._device.type != "cuda")

    def _save(self, wait: bool) -> None:
        self._folder.save(self._num_done, self._state(), wait)

    def _count_delays(self, first: int, last: int) -> None:
        for operations in self._parts.schedule.operations(first, last):
            for stage, counted in delays(operations).items():
                self._delays[stage] = max(self._delays[stage], *counted)

    def _row(self, update: Update) -> Row:
        now = time.monotonic()
        seconds, self._last_tick = now - self._last_tick, now
        self._train_seconds += seconds
        self._num_done = update.batch + 1
        return {
            "update": update.batch,
            "train_loss": update.loss,
            "lr": update.lr,
            "grad_norm": update.grad_norm,
            "tokens_per_second": self._tokens(1) / seconds,
            "wall_seconds": self._wall_seconds(),
        }

    def _write(self, row: Row) -> None:
        self._folder.append(row)
        self._report(row)

    def _tokens(self, num_updates: int) -> int:
        return num_updates * self._config["batch_size"] * self._config["seq_len"]

    def _wall_seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    def _evaluate(self, row: Row) -> None:
        """Adds the validation loss of W(t + 1) to the row of update t.

        Raises Diverged if it is not finite or, after the warm-up, above ln(vocabulary) + 1.
        """
        is_last = row["update"] + 1 == self._plan.num_updates
        tokens = None if is_last else self._config["eval_tokens"]
        found = self._parts.validation.batches(self._config["eval_batch_size"], tokens)
        batches = (batch.to(self._device) for batch in found)
        self._val_loss = self._executor.evaluate(batches)
        row["val_loss"] = self._val_loss if math.isfinite(self._val_loss) else None
        self._write(row)
        is_warm = any(self._parts.lr_factor(t) >= 1 for t in range(row["update"] + 1))
        limit = math.log(self._parts.model.vocab_size) + 1 if is_warm else math.inf
        if not self._val_loss < limit:
            raise Diverged(row["update"])

    def _state(self) -> Row:
        return {
            "trial_id": self._plan.trial_id,
            "config": dict(self._config),
            "num_updates": self._num_done,
            "executor": self._executor.state(),
            "random": random_state(self._device),
            "delays": self._delays,
            "train_seconds": self._train_seconds,
            "val_loss": self._val_loss,
            "made_by": self._made_by,
        }

    def _resume(self) -> None:
        """Resumes from the newest checkpoint, else from `resume_from`; else it starts anew."""
        path = self._executor.agreed(self._folder.newest_checkpoint())
        if path is not None:
            state = checkpoint.load_own(path, self._plan.trial_id)
            self._executor.restore(state["executor"])
            self._begin(state)
            self._delays = state["delays"]
        elif (other := restored_other(self._config, self._executor)) is not None:
            self._begin(other)
        self._executor.agreed(None)  # by now every rank has read the file, which gets another name
        self._seconds_before = self._folder.resume(self._num_done, path)

    def _begin(self, state: Row) -> None:
        self._num_done = state["num_updates"]
        restore_random_state(state["random"], self._device)
        self._val_loss, self._train_seconds = state["val_loss"], state["train_seconds"]

    def _finish(self, status: Status, final_val_loss: float | None, diverged_at: int | None) -> Row:
        num_tokens = self._tokens(self._num_done)
        result = {
            **provenance(
                self._config,
                self._plan.trial_id,
                self._plan.data_hash,
                device_name(self._device),
            ),
            "status": status,
            "final_val_loss": final_val_loss,
            "diverged_at": diverged_at,
            "seed": self._config["seed"],
            "num_updates": self._num_done,
            "num_parameters": self._plan.num_parameters,
            "num_active_parameters": self._plan.num_active_parameters,
            "tokens": num_tokens,
            "epochs": self._parts.batches.epochs(self._num_done),
            "wall_seconds": self._wall_seconds(),
            "tokens_per_second": num_tokens / max(self._train_seconds, 1e-9),
            "delays": self._delays,
            "layers_by_stage": self._plan.layers_by_stage,
            "peak_memory_bytes": peak_memory_bytes(self._device),
            **self._executor.usage(),
        }
        if self._config["save_final"]:
            weights = self._executor.weights()
            if self._folder.records:
                save_final(weights, self._parts.model, self._folder.path)
                self._keep_tokenizer(self._folder.path / "final")
        self._on_finish(self._folder.path)
        return self._folder.finish(result)

    def _keep_tokenizer(self, pretrained: Path) -> None:
        """Beside the weights, if transformers can hold them and the data knows it."""
        with suppress(BadInput):
            if pretrained.is_dir():
                write_tokenizer(*tokenizer_of(self._config["data"]), pretrained)
