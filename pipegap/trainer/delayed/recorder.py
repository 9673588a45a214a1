"""Records a loop of one's own as a trial of a store, so that `pipegap report` shows its gap."""

import math
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.resources import device_name, peak_memory_bytes
from pipegap.trainer.base.status import Status
from pipegap.trainer.config.identity import made_by, provenance, trial_id
from pipegap.trainer.config.names import OWN_LOOP
from pipegap.trainer.delayed.arm import Node
from pipegap.trainer.delayed.optimizer import DelayedOptimizer
from pipegap.trainer.executors.gradients import Diverged
from pipegap.trainer.folder import wellformed
from pipegap.trainer.folder.record import ReadOnlyFolder, TrialFolder
from pipegap.trainer.folder.result import Row, trial_folder

Word = str | int | float | bool | None
NAMES = ("model", "data", "optimizer", "lr_schedule")
"""Words that are names of the loop's own choices; the last may be left out."""
NUMBERS = ("seed", "batch_size", "seq_len", "num_updates")
"""Where such names have their `_target_`. Nothing is there: only the loop can make the trial."""


class Recorder:
    """The record of one training; see `record`."""

    def __init__(
        self, folder: TrialFolder, config: Mapping[str, Any], delayed: DelayedOptimizer
    ) -> None:
        self.folder, self._config, self._delayed = folder, config, delayed
        self._seconds_before = folder.resume(delayed.num_taken, None)
        self._started = self._last_tick = time.monotonic()
        self._num_recorded, self._first = delayed.num_taken, delayed.num_taken
        self._val_loss: float | None = None

    def update(self, train_loss: float, val_loss: float | None = None) -> None:
        """Records the last `step`: the loss of its batch, in nats per token, and, where the newest
        weights were evaluated, their validation loss.

        A loss that is not finite ends the `with` block: the training diverged, which is its result.
        Raises RuntimeError unless it is called once after each step, and ValueError for the result
        of weights that older gradients wait for.
        """
        batch = self._delayed.num_taken - 1
        if batch != self._num_recorded:
            raise RuntimeError(f"update() recorded {self._num_recorded} steps of {batch + 1}")
        is_last = batch + 1 == self._config["num_updates"]
        if is_last and val_loss is not None and (num := self._delayed.num_waiting):
            raise ValueError(
                f"the last val_loss is not of the newest weights: {num} updates wait; evaluate "
                "after finish(), or give num_updates to the DelayedOptimizer"
            )
        self._num_recorded, self._val_loss = batch + 1, val_loss
        is_bad = not all(math.isfinite(loss) for loss in (train_loss, val_loss or 0.0))
        now = time.monotonic()
        row = {
            "update": batch,
            "train_loss": None if is_bad else float(train_loss),
            "lr": float(self._delayed.param_groups[0]["lr"]),
            "tokens_per_second": self._tokens(1) / max(now - self._last_tick, 1e-9),
            "wall_seconds": self._seconds_before + now - self._started,
        }
        self._last_tick = now
        if val_loss is not None:
            row["val_loss"] = None if is_bad else float(val_loss)
        self.folder.append(row)
        if is_bad:
            raise Diverged(batch)

    def _tokens(self, num_updates: int) -> int:
        return num_updates * self._config["batch_size"] * self._config["seq_len"]

    def finish(self) -> None:
        """Writes the result of a training that made all its updates.

        Raises ValueError if the last of them came without a validation loss.
        """
        if self._num_recorded == self._config["num_updates"]:
            if self._val_loss is None:
                raise ValueError("the last update() needs a val_loss: it is the training's result")
            self.folder.finish(self._result(Status.COMPLETED, self._val_loss, None))

    def diverge(self, update: int) -> None:
        """Writes the result of a training that diverged at this update."""
        self.folder.finish(self._result(Status.DIVERGED, None, update))

    def fail(self, error: str) -> None:
        """Writes that the training failed: it may run again."""
        self.folder.fail({**self._result(Status.FAILED, None, None), "error": error})

    def _result(self, status: Status, loss: float | None, diverged_at: int | None) -> Row:
        weights = [weight for group in self._delayed.param_groups for weight in group["params"]]
        device = weights[0].device
        seconds = time.monotonic() - self._started
        num_timed = self._num_recorded - self._first
        identity = trial_id(self._config, None)
        return {
            **provenance(self._config, identity, None, device_name(device)),
            "status": status,
            "final_val_loss": loss,
            "diverged_at": diverged_at,
            "seed": self._config["seed"],
            "looks_ahead": self._delayed.looks_ahead,
            "num_updates": self._num_recorded,
            "num_parameters": sum(weight.numel() for weight in weights),
            "tokens": self._tokens(self._num_recorded),
            "wall_seconds": self._seconds_before + seconds,
            "tokens_per_second": self._tokens(num_timed) / max(seconds, 1e-9),
            "delays": [self._delayed.largest_delay],
            "peak_memory_bytes": peak_memory_bytes(device),
        }


@contextmanager
def record(
    results: str | Path, delayed: DelayedOptimizer, words: Mapping[str, Word]
) -> Iterator[Recorder]:
    """Records a training in the store `results` as the trial that `words` name.

    `words` must have the names `model`, `data` and `optimizer` and the numbers `seed`,
    `batch_size` (sequences per update), `seq_len` (tokens per sequence) and `num_updates`. Others
    are yours: `optimizer.lr`, `clip_norm`, `lr_schedule`. The words and the delay of `delayed` make
    the trial's id, and trainings are compared whose words differ in nothing but the seed: so change
    a word when you change your code. Use `delay=0` for the synchronous training.

    Call `update` of what it yields once after each step. A training that ends before `num_updates`
    has no result and goes on when it is recorded again, from the checkpoint that `delayed` was
    loaded from before. Under torch.distributed rank 0 writes: give `update` a loss of all ranks.
    Raises BadInput for words that are missing or cannot be used, and for a finished trial.
    """
    config = _config(str(results), delayed, words)
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    identity = trial_id(config, None)
    folder = (ReadOnlyFolder if rank else TrialFolder)(trial_folder(config, identity), identity)
    if folder.result() is not None:
        allowed = f"is finished with these words: see {folder.path}"
        raise BadInput("words.seed", words["seed"], allowed)
    device = delayed.param_groups[0]["params"][0].device
    with folder.claimed(config, made_by(device_name(device))):
        recorder = Recorder(folder, config, delayed)
        try:
            yield recorder
            recorder.finish()
        except Diverged as diverged:
            recorder.diverge(diverged.batch)
        except Exception:
            recorder.fail(traceback.format_exc())
            raise


def _config(results: str, delayed: DelayedOptimizer, words: Mapping[str, Word]) -> Node:
    """The words as a trial's config, with the pipeline and the correction of `delayed`."""
    known = {"lr_schedule": "own", **words}
    for name in (*NAMES, *NUMBERS):
        kind = str if name in NAMES else int
        if not isinstance(known.get(name), kind) or isinstance(known[name], bool):
            allowed = f"must be {'a name' if kind is str else 'an int'}"
            raise BadInput(f"words.{name}", known.get(name, "missing"), allowed)
    if delayed.num_updates not in (None, known["num_updates"]):
        allowed = f"must be num_updates={delayed.num_updates} of the DelayedOptimizer"
        raise BadInput("words.num_updates", known["num_updates"], allowed)
    config: Node = {
        "choices": {name: known[name] for name in NAMES},
        **{name: {"_target_": f"{OWN_LOOP}{str(known[name]).replace('.', '_')}"} for name in NAMES},
        "pipeline": delayed.pipeline,
        "correction": delayed.correction,
        "tokens_per_parameter": None,
        "clip_norm": None,
        "resume_from": None,
        "results": results,
        "out": None,
    }
    config["data"]["path"] = known["data"]
    for word, value in known.items():
        group, _, key = word.partition(".")
        if key and group in NAMES and key not in ("_target_", "path"):
            config[group][key] = value
        elif key or word in ("choices", "pipeline", "correction", "results", "out"):
            allowed = f"must be a word of its own, or begin with one of {', '.join(NAMES)}"
            raise BadInput(f"words.{word}", value, allowed)
        elif word not in NAMES:
            config[word] = value
    try:
        wellformed.check(config, wellformed.CONFIG)
    except ValueError as error:
        raise BadInput("words", dict(words), str(error)) from None
    return config
