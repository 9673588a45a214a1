"""What ranks of Megatron Core train, beside the plain loop: a program for torchrun.

    torchrun --nproc-per-node 1 -m tests.support.megatron_run FOLDER loops SETTINGS
    torchrun --nproc-per-node N -m tests.support.megatron_run FOLDER PROGRAM [SETTINGS]

SETTINGS is JSON, a list of the arguments of `Setting`. Each program writes FOLDER/PROGRAM.json.
"""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.support.megatron_gpt import (
    LENGTH,
    MICRO,
    UPDATES,
    Setting,
    batch_of,
    begin,
    config_of,
    differences,
    forward_step,
    gpt,
    plain_loop,
    saves_views,
    scheduler_of,
    wrapped,
)
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

from pipegap.trainer.megatron import Megatron2BW

DRAINED_AFTER = 0, 2, 3


class Loop:
    """A training loop of Megatron's, by its own 1F1B or by 2BW."""

    def __init__(self, setting: Setting, whole: dict[str, torch.Tensor], *, is_2bw: bool, **options: Any) -> None:
        self.setting, self.is_2bw = setting, is_2bw
        self.model, self.optimizer = wrapped(config_of(setting), setting, whole)
        self.scheduler = scheduler_of(self.optimizer)
        self.run, self.step = get_forward_backward_func(), self.optimizer.step
        if is_2bw:
            error_feedback = 1.0 if setting.has("ef") else 0.0
            start = 2 if setting.has("start") else 0
            options = {"error_feedback": error_feedback, "synchronous_start": start, **options}
            self.pipeline = Megatron2BW(self.model, self.optimizer, **options)
            self.run, self.step = self.pipeline.forward_backward, self.pipeline.step
        self.losses: list[torch.Tensor] = []
        self.norms: list[float] = []

    def call(self, t: int, **options: Any) -> Any:
        m, replica = self.setting.microbatches, parallel_state.get_data_parallel_rank()
        given = {
            "forward_step_func": forward_step,
            "data_iterator": batch_of(t, m, replica),
            "num_microbatches": m,
            "seq_length": LENGTH,
            "micro_batch_size": MICRO,
        }
        return self.run(**{**given, "model": self.model, **options})

    def train(self, first: int, last: int) -> None:
        """As Megatron-LM's train_step."""
        for t in range(first, last):
            self.model.zero_grad_buffer()
            self.optimizer.zero_grad()
            self.losses += [logged["loss"] for logged in self.call(t)]
            is_updated, norm, _ = self.step()
            if is_updated:
                self.scheduler.step(1)
                self.norms.append(norm)
            if self.is_2bw and self.setting.has("drain") and t in DRAINED_AFTER:
                with self.pipeline.drained():
                    self.call(t, forward_only=True)

    def differences(self, right: dict[str, Any]) -> dict[str, float]:
        with self.pipeline.drained() if self.is_2bw else nullcontext():
            if self.setting.has("gather"):
                self.model.start_param_sync(force_sync=True)
            return differences(self.setting, self.model, self.losses, self.norms, right)


def loops(folder: Path, settings: list[Setting]) -> None:
    """Every plain loop that a setting needs, to FOLDER/loops.pt."""
    begin()
    kept: dict[Any, Any] = {}
    for setting in settings:
        key = key_of_weights(setting)
        with saves_views(setting):
            if key not in kept:
                wide = Setting("+".join(w for w in ("tied", "experts") if setting.has(w)), pp=1)
                named = gpt(config_of(wide), wide).named_parameters()
                kept[key] = {name: weight.detach().clone() for name, weight in named}
            for late in (0, 1):
                if setting.loop(late) not in kept:
                    kept[setting.loop(late)] = plain_loop(kept[key], setting, late)
    torch.save(kept, folder / "loops.pt")


def key_of_weights(setting: Setting) -> tuple[str, bool, bool]:
    return "weights", setting.has("tied"), setting.has("experts")


def numbers(folder: Path, settings: list[Setting], kept: Any) -> dict[str, Any]:
    """How far 1F1B and 2BW are from the plain loop."""
    found: dict[str, Any] = {}
    for setting in settings:
        begin(setting.pp, setting.tp)
        for is_2bw in (False, True):
            if not is_2bw and {"ef", "drain", "start"} & {*setting.words.split("+")} != set() and setting.words != "ef":
                continue
            with saves_views(setting):
                loop = Loop(setting, kept[key_of_weights(setting)], is_2bw=is_2bw)
                loop.train(0, UPDATES)
                right = kept[setting.loop(int(is_2bw))]
                name = f"{'2BW' if is_2bw else '1F1B'} pp{setting.pp} tp{setting.tp} dp{setting.replicas} {setting.words}"
                found[name] = loop.differences(right)
                if dist.get_rank() == 0: print(name, found[name], flush=True)
    return found


PROGRAMS: dict[str, Callable[..., Any]] = {"numbers": numbers}


def main() -> None:
    folder, program = Path(sys.argv[1]), sys.argv[2]
    settings = [Setting(*of) for of in json.loads(sys.argv[3])] if len(sys.argv) > 3 else []
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if program == "loops":
        loops(folder, settings)
        return
    kept = torch.load(folder / "loops.pt")
    found = PROGRAMS[program](folder, settings, kept)
    if dist.get_rank() == 0:
        (folder / f"{program}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":  # Megatron's writer of checkpoints spawns
    main()
