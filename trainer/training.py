"""Trains the parts of one trial from drain to drain, evaluates, and records."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from trainer import checkpoint
from trainer.agenda import Agenda
from trainer.diagnostics import summary
from trainer.errors import BadInput, Stopped
from trainer.executor import Executor
from trainer.export import save_final
from trainer.gradients import Diverged, Update
from trainer.identity import provenance
from trainer.operations import delays
from trainer.parts import Parts
from trainer.plan import Plan
from trainer.record import Row, TrialFolder
from trainer.resources import device_name, peak_memory_bytes, random_state, restore_random_state
from trainer.watch import AskedToStop

Config = Mapping[str, Any]
Report = Callable[[Row], None]

STOP_WITHIN = 10.0
"""Seconds between drains: so long can it take until a trial that is asked to stop can do so."""


def nowhere(row: Row) -> None:
    """Reports to nobody."""


def never() -> bool:
    """Nobody asks to stop."""
    return False


def nothing(folder: Path) -> None:
    """Leaves nothing more in a trial's folder."""


class Training:
    """The parts of one trial and how far it has come.

    `asked_to_stop` is asked between drains; `on_finish` is handed the trial's folder before the
    result is written.
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
        self._delays = [0] * self._parts.schedule.num_stages
        self._val_loss = math.nan
        self._resume()

    def run(self) -> Row:
        """Trains to the end or to divergence, and records the result.

        Raises Stopped, after a checkpoint, if it is asked to stop.
        """
        try:
            for drain in self._agenda.drains(self._num_done):
                self._advance_to(drain)
        except Diverged as diverged:
            return self._finish("diverged", None, diverged.batch)
        return self._finish("completed", self._val_loss, None)

    def _advance_to(self, drain: int) -> None:
        """In runs so short that a wish to stop is soon heard; every rank does the same."""
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
                self._save()
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
            self._executor.rehearse(first)
        self._last_tick = time.monotonic()
        self._executor.run(first, last, on_update)
        for row in held:
            if compares:
                row["diagnostics"] = summary(self._executor.take_comparison())
            if evaluates:
                self._evaluate(row)
            else:
                self._write(row)
        if self._agenda.saves_after(last):
            self._save()

    def _save(self) -> None:
        state = self._state()
        if self._folder.records:
            self._folder.require()
            checkpoint.save(self._folder.path, self._num_done, state)

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
        """Adds the loss of W(t + 1) on the whole validation split to the row of update t.

        Above ln(vocabulary) + 1 after the warm-up, or not finite, it is a divergence.
        """
        size, windows = self._config["eval_batch_size"], self._parts.validation
        starts = range(0, len(windows), size)
        batches = (windows[start : start + size].to(self._device) for start in starts)
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
        }

    def _resume(self) -> None:
        """Goes on from the newest checkpoint; without one, from `resume_from` or the start."""
        path, other = checkpoint.newest(self._folder.path), self._config["resume_from"]
        if path is not None:
            state = checkpoint.load(path)
            self._take_back(state)
            self._delays = state["delays"]
        elif other is not None:
            try:
                self._take_back(checkpoint.load_other(Path(other), self._config))
            except LookupError as error:
                raise BadInput("resume_from", other, str(error)) from None
        self._seconds_before = self._folder.starts(self._num_done)

    def _take_back(self, state: Row) -> None:
        self._num_done = state["num_updates"]
        self._executor.restore(state["executor"])
        restore_random_state(state["random"], self._device)
        self._val_loss, self._train_seconds = state["val_loss"], state["train_seconds"]

    def _finish(self, status: str, final_val_loss: float | None, diverged_at: int | None) -> Row:
        num_tokens = self._tokens(self._num_done)
        result = {
            **provenance(self._plan.trial_id, self._plan.data_hash, device_name(self._device)),
            "status": status,
            "final_val_loss": final_val_loss,
            "diverged_at": diverged_at,
            "seed": self._config["seed"],
            "num_updates": self._num_done,
            "num_parameters": self._plan.num_parameters,
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
        self._on_finish(self._folder.path)
        if self._folder.records:
            self._folder.finish(result)
            checkpoint.delete(self._folder.path)
        return result
