"""Records a loop of one's own as a trial of a store, so that `pipegap report` shows its gap."""

import json
import math
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, SupportsFloat

import torch
import torch.distributed as dist

from pipegap.trainer.base.errors import BadInput, Status
from pipegap.trainer.base.resources import device_name, peak_memory_bytes
from pipegap.trainer.config.identity import (
    COMPUTED_WITH,
    LOOP,
    WORDS,
    is_number,
    made_by,
    provenance,
    trial_id,
)
from pipegap.trainer.delayed.arm import Node
from pipegap.trainer.delayed.optimizer import DelayedOptimizer
from pipegap.trainer.executors.executor import Diverged
from pipegap.trainer.folder import wellformed
from pipegap.trainer.folder.record import ReadOnlyFolder, TrialFolder
from pipegap.trainer.folder.wellformed import Row, trial_folder

Word = Any
"""Text, a number, a bool or None; numbers also of numpy and torch; lists and dicts of these."""
NAMES = ("model", "data", "optimizer", "lr_schedule")
"""Words that are names of the loop's own choices; the last may be left out."""
NUMBERS = ("seed", "batch_size", "seq_len", "num_updates")
OPTIONS = {*signature(DelayedOptimizer).parameters} - {*NAMES, *NUMBERS, "clip_norm"}
OF_ARM = {"arm", "pipeline", *OPTIONS}
"""What the `DelayedOptimizer` says: as words they would tell the trials of a pair apart."""


class Recorder:
    """The record of one training; see `record`."""

    def __init__(
        self, folder: TrialFolder, config: Mapping[str, Any], delayed: DelayedOptimizer
    ) -> None:
        self.folder, self._config, self._delayed = folder, config, delayed
        # None: the checkpoint is the loop's own, and lies elsewhere.
        self._seconds_before = folder.resume(delayed.num_taken, None)
        self._started = self._last_tick = time.monotonic()
        self._num_recorded, self._first = delayed.num_taken, delayed.num_taken
        self._val_loss: float | None = None

    def update(self, train_loss: SupportsFloat, val_loss: SupportsFloat | None = None) -> None:
        """Records the last `step`: the loss of its batch, in nats per token, and, where the newest
        weights were evaluated, their validation loss. A loss is a number, or a tensor of one.

        A loss that is not finite ends the `with` block: the training diverged, which is its result.
        Raises RuntimeError unless it is called once after each step, ValueError for the result of
        weights that older gradients wait for, and BadInput for a loss that is no number.
        """
        train_loss = _as_float("train_loss", train_loss)
        val_loss = None if val_loss is None else _as_float("val_loss", val_loss)
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
        time_now = time.monotonic()
        row = {
            "update": batch,
            "train_loss": None if is_bad else train_loss,
            "lr": self._rate(),
            "tokens_per_second": self._tokens(1) / max(time_now - self._last_tick, 1e-9),
            "wall_seconds": self._seconds_before + time_now - self._started,
        }
        self._last_tick = time_now  # an evaluation before `update` counts as time of its row
        if val_loss is not None:
            row["val_loss"] = None if is_bad else val_loss
        self.folder.append(row)
        if is_bad:
            raise Diverged(batch)

    def _rate(self) -> float | None:
        """Return the learning rate of the first group; None of an optimizer that sets its own, such
        as Adafactor."""
        rate = self._delayed.param_groups[0].get("lr")
        return None if rate is None else float(rate)

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
            **provenance(self._config, identity, None, _devices(device)),
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


def _devices(device: torch.device) -> str:
    """Return the kind of device and, before it, how many ranks ran on one: their sums round
    otherwise than those of another number."""
    is_distributed = dist.is_available() and dist.is_initialized()
    num_ranks = dist.get_world_size() if is_distributed else 1
    return f"{num_ranks} × {device_name(device)}" if num_ranks > 1 else device_name(device)


@contextmanager
def record(
    results: str | Path, delayed: DelayedOptimizer, words: Mapping[str, Word]
) -> Iterator[Recorder]:
    """Records a training in the store `results` as the trial that `words` name.

    `words` must have the names `model`, `data` and `optimizer` and the numbers `seed`,
    `batch_size` (sequences per update), `seq_len` (tokens per sequence) and `num_updates`. Tables
    know `lr_schedule` (a name), `clip_norm`, and the `lr`, `momentum` and `weight_decay` of
    `optimizer.` too. Every other word is yours and counts: text, a number, a bool, or lists and
    dicts of these; None is as if the word was not there. A word may begin with `model.`, `data.`,
    `optimizer.` or `lr_schedule.`. The words and the delay of `delayed` make the trial's id, and
    trainings are compared whose words differ in nothing but the seed: so change a word when you
    change or compile your code. Use `delay=0` for the synchronous training.

    Call `update` of what it yields once after each step. A training that ends before `num_updates`
    has no result and goes on when it is recorded again, from the checkpoint that `delayed` was
    loaded from before. Under torch.distributed rank 0 writes: give `update` a loss of all ranks.
    Raises BadInput for words that are missing or cannot be used, and for a finished trial.
    """
    config = _config(str(results), delayed, words)
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    identity = trial_id(config, None)
    folder = (ReadOnlyFolder if rank else TrialFolder)(trial_folder(config, identity), identity)
    _require_same_names(folder.path, config)
    if folder.result() is not None:
        allowed = f"is finished with these words: see {folder.path}"
        raise BadInput("words.seed", words["seed"], allowed)
    device = delayed.param_groups[0]["params"][0].device
    with folder.claimed(config, made_by(_devices(device))):
        recorder = Recorder(folder, config, delayed)
        try:
            yield recorder
            recorder.finish()  # within `try`: a missing val_loss is recorded as a failure
        except Diverged as diverged:
            recorder.diverge(diverged.batch)
        except Exception:
            recorder.fail(traceback.format_exc())
            raise


def _as_float(name: str, loss: object) -> float:
    """Return a loss as a float. Raises BadInput for what is no number, or several."""
    try:
        if isinstance(loss, SupportsFloat):  # which a text is not
            return float(loss)
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several
        pass
    allowed = "must be one number: of several evaluation sets give that of one, or a mean"
    raise BadInput(name, loss, allowed)


def _require_same_names(folder: Path, config: Node) -> None:
    """Raises BadInput if the trial was recorded under other names that have the same id.

    In the config a dot of a name is written as `_`.
    """
    try:
        recorded = wellformed.read(folder / "config.json", wellformed.CONFIG).get("choices")
    except (FileNotFoundError, wellformed.Damaged):
        return
    for name, name_given in config["choices"].items():
        if recorded and recorded[name] != name_given:
            allowed = f"is too much like {recorded[name]}, which {folder} has: write another name"
            raise BadInput(f"words.{name}", name_given, allowed)


def _config(results: str, delayed: DelayedOptimizer, words: Mapping[str, Word]) -> Node:
    """The words as a trial's config, with the pipeline and the correction of `delayed`."""
    plain = {word: _checked(word, value) for word, value in words.items()}
    schedule = plain.get("lr_schedule")
    if schedule is None:
        plain["lr_schedule"] = "own"
    for name in (*NAMES, *NUMBERS):
        value = plain.get(name, "missing")
        if name in NAMES and not (isinstance(plain.get(name), str) and _is_printed(value)):
            raise BadInput(f"words.{name}", value, "must be a name")
        if name in NUMBERS and (not is_number(value) or value % 1):  # 16.0 is an int here
            raise BadInput(f"words.{name}", value, "must be an int")
    for word in plain:
        for inner in plain if "." in word else ():
            if inner.startswith(f"{word}."):
                allowed = f"is a part of {word}: write it once"
                raise BadInput(f"words.{inner}", plain[inner], allowed)
    numbers = {name: int(plain[name]) for name in NUMBERS}
    if delayed.num_updates not in (None, numbers["num_updates"]):
        allowed = f"must be num_updates={delayed.num_updates} of the DelayedOptimizer"
        raise BadInput("words.num_updates", numbers["num_updates"], allowed)
    loop_words: dict[str, Word] = {}
    config: Node = {
        "choices": {name: plain[name] for name in NAMES},
        # An address, where no module is, by whose last part tables show the name.
        **{name: {"_target_": f"{LOOP}.{plain[name].replace('.', '_')}"} for name in NAMES},
        **numbers,
        "pipeline": delayed.pipeline,
        "correction": delayed.correction,
        "tokens_per_parameter": None,
        "clip_norm": plain.pop("clip_norm", None),
        "resume_from": None,
        "results": results,
        "out": None,
        WORDS: loop_words,
    }
    config["data"]["path"] = plain["data"]
    for word, value in plain.items():
        group, _, key = word.partition(".")
        if key and word != "data.path":  # which has the name of the data, as it may have no place
            config[group][key] = value
        elif word not in (*NAMES, *NUMBERS):
            loop_words[word] = value
    try:
        wellformed.check(config, wellformed.CONFIG)
    except ValueError as error:
        raise BadInput("words", dict(words), str(error)) from None
    return config


def _checked(word: str, value: object) -> Word:
    """Return the value of a word as JSON holds it; raises BadInput for what cannot be a word."""
    name, (group, _, key) = f"words.{word}", str(word).partition(".")
    if word in OF_ARM:
        allowed = "is not a word: the DelayedOptimizer says it, and a pair has the same words"
        raise BadInput(name, value, allowed)
    if not (isinstance(word, str) and _is_printed(word)) or key == "_target_":
        raise BadInput(name, value, "must be called by printable text, such as dropout")
    if group != word and (group not in NAMES or not key):
        begins, alternative = ", ".join(NAMES), word.strip(".").replace(".", "_")
        allowed = f"must be a word of its own, or begin with one of {begins}: write {alternative}"
        raise BadInput(name, value, allowed)
    plain = _plain(name, value)
    if word in COMPUTED_WITH and plain is not None and not is_number(plain):
        raise BadInput(name, value, "must be a number or None, which tables compute with")
    return plain


def _plain(name: str, value: object) -> Word:
    """Return a value as JSON holds it: one of numpy or torch as a number of Python."""
    if isinstance(value, Mapping):
        if unusable := [key for key in value if not isinstance(key, str) or not key.isidentifier()]:
            raise BadInput(f"{name}.{unusable[0]}", value[unusable[0]], "must be called by a name")
        return {key: _plain(f"{name}.{key}", part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, part) for part in value]
    if getattr(value, "ndim", None) == 0:  # a number of numpy, or a tensor
        value = value.item()  # type: ignore[attr-defined]
    if not isinstance(value, str | int | float | None):
        allowed = f"must be text, a number, a bool, None, or lists and dicts of these: str({name})"
        raise BadInput(name, value, allowed)
    plain: Word = json.loads(json.dumps(value))  # a member of an enum, too
    if is_number(plain) and not abs(plain) < 2**63:  # no NaN either
        raise BadInput(name, value, "must be finite and below 2 ** 63: write it as text")
    return plain


def _is_printed(text: str) -> bool:
    """Whether a text can be a name: it is seen as it is."""
    return text.isprintable() and text.strip() == text != ""
