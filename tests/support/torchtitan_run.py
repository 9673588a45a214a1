"""torchtitan's own `Trainer` on two CPUs, a rank per stage: a program for torchrun.

    torchrun --nproc-per-node 2 -m tests.support.torchtitan_run FOLDER

It trains torchtitan's debug model in three ways, by the code of docs/torchtitan.md, and writes the
losses of each to FOLDER/losses.json. torchtitan asks for a GPU. What this program puts in the place
of torchtitan's own parts is: the device and gloo, the monitor of the device's memory, attention (a
FlexAttention must be compiled; `ScaledDotProductAttention` is torchtitan's too), and, before torch
2.14, the arguments of `step` and `eval` that torchtitan 0.3.0 relies on.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from tests.support.markdown import ROOT, blocks

NUM_STEPS, SAVE_AT, VALIDATE_AT = 6, 3, 2
VOCABULARY = 64
INIT, NUMBERS = dist.init_process_group, count()


def on_cpu(stack: ExitStack) -> None:
    """Replaces, before torchtitan is imported, what only a GPU has."""
    stack.enter_context(patch("torch._utils._get_available_device_type", lambda: "cpu"))
    from torchtitan.components import metrics
    from torchtitan.distributed import utils

    class NoMonitor:
        device_name = "cpu"

        def get_peak_stats(self) -> Any:
            return metrics.DeviceMemStats(0.0, 0.0, 0.0, 0.0, 0, 0)

        def reset_peak_stats(self) -> None:
            pass

    stack.enter_context(patch.object(metrics, "build_device_memory_monitor", NoMonitor))
    stack.enter_context(patch.object(dist, "init_process_group", init_process_group))
    # A barrier of gloo takes no number of a device.
    stack.enter_context(patch.object(utils, "set_pg_timeouts", lambda **_: None))
    if "arg_mbs" not in signature(PipelineScheduleSingle.step).parameters:
        stack.enter_context(patch.object(PipelineScheduleSingle, "step", step))
        stack.enter_context(patch.object(PipelineScheduleSingle, "eval", evaluate))


def init_process_group(*, backend: str, timeout: timedelta, **_: Any) -> None:
    """As often as there are trainings: torchrun's own store takes each rank once."""
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    path = Path(sys.argv[1]) / f"store_{next(NUMBERS)}"
    store = dist.FileStore(str(path), world)
    INIT(backend, timeout=timeout, store=store, rank=rank, world_size=world)


def step(self: Any, *, losses: Any = None, loss_kwargs: Any = None, **given: Any) -> None:
    """What torch 2.14 makes of a batch in microbatches."""
    self._stage.has_backward = self._has_backward
    self._stage.clear_runtime_states()
    mbs = [given[f"{name}_mbs"] for name in ("arg", "kwarg", "target")]
    self._step_microbatches(*mbs, losses, False, loss_kwargs)


def evaluate(self: Any, **given: Any) -> None:
    """Likewise, without a backward."""
    self._has_backward = False
    try:
        step(self, **given)
    finally:
        self._has_backward = True


def config(folder: Path, schedule: str, load_step: int = -1) -> Any:
    """torchtitan's debug model on random bytes."""
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    class NoTokenizer(BaseTokenizer):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config: Any, **_: Any) -> None:
            super().__init__()

        encode = decode = get_vocab_size = lambda self, *_: None

    class Bytes(BaseDataLoader):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            infinite: bool = True

        def __init__(self, config: Any, *, seq_len: int, local_batch_size: int, **_: Any) -> None:
            self.shape, self.number = (local_batch_size, seq_len + 1), 0

        def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
            while True:
                seeded = torch.Generator().manual_seed(self.number)
                rows = torch.randint(VOCABULARY, self.shape, generator=seeded)
                self.number += 1
                yield {"input": rows[:, :-1].contiguous()}, rows[:, 1:].contiguous()

        def state_dict(self) -> dict[str, Any]:
            return {"number": self.number}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.number = state_dict["number"]

    made = llama3_debugmodel()
    for layer in made.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    made.dump_folder, made.debug.seed = str(folder), 1
    made.tokenizer, made.dataloader = NoTokenizer.Config(), Bytes.Config()
    made.training.seq_len, made.training.local_batch_size = 16, 4
    made.training.steps, made.training.disable_cuda_graphs = NUM_STEPS, True
    made.training.mixed_precision_param = "float32"
    made.training.max_norm = 0.5
    made.optimizer.implementation = "foreach"
    made.parallelism.pipeline_parallel_degree = 2
    made.parallelism.pipeline_parallel_microbatch_size = 1
    made.parallelism.pipeline_parallel_schedule = schedule
    made.validator.enable, made.validator.freq, made.validator.steps = True, VALIDATE_AT, 1
    made.validator.dataloader = Bytes.Config()
    made.checkpoint.enable, made.checkpoint.interval = True, SAVE_AT
    made.checkpoint.load_step = load_step
    made.comm.trace_buf_size = 0
    return made


def losses_of(trainer: Any) -> dict[str, list[float]]:
    """Trains to the end: the loss of every batch and of every validation, on the last stage."""
    training, validation = [], []
    forward_backward, log = trainer.forward_backward_step, trainer.metrics_processor.log_validation

    def watched(**given: Any) -> torch.Tensor:
        loss: torch.Tensor = forward_backward(**given)
        training.append(loss.item())
        return loss

    def logged(loss: float, step: int) -> None:
        validation.append(loss)
        log(loss=loss, step=step)

    trainer.forward_backward_step, trainer.metrics_processor.log_validation = watched, logged
    trainer.train()
    trainer.close()
    dist.destroy_process_group()
    return {"training": training, "validation": validation}


def emulated(page: dict[str, Any], made: Any) -> Any:
    """A trainer whose optimizers are delayed."""
    trainer = page["Trainer"](made)
    page["delay_optimizers"](trainer.optimizers)
    validate = trainer.validator.validate

    def validate_newest(*given: Any) -> None:
        with page["newest"](trainer.optimizers):
            validate(*given)

    trainer.validator.validate = validate_newest
    return trainer


def pipelined(page: dict[str, Any], made: Any) -> Any:
    """A trainer of 2BW."""
    return page["Trainer2BW"](made)


def refused(page: dict[str, Any], folder: Path) -> list[str]:
    """What is said of experts that are balanced by counts, and of a batch in two steps."""
    from torchtitan.models.deepseek_v3 import model_registry

    said = []
    experts, accumulated = config(folder, "2BW"), config(folder, "2BW")
    experts.model_spec = model_registry("debugmodel", moe_comm_backend="standard")
    accumulated.training.global_batch_size = 2 * accumulated.training.local_batch_size
    for made in (experts, accumulated, config(folder, "1F1B")):
        try:
            page["Trainer2BW"](made)
        except ValueError as error:
            said.append(str(error))
        if dist.is_initialized():
            dist.destroy_process_group()
    return said


WAYS = {"emulated": emulated, "pipelined": pipelined}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with ExitStack() as stack:
        on_cpu(stack)
        names: dict[str, Any] = {"__name__": "page"}
        for block in blocks(ROOT / "docs" / "torchtitan.md"):
            if block.language == "python":
                exec(block.text, names)
        found: dict[str, Any] = {}
        for way, schedule in (("emulated", "1F1B"), ("pipelined", "2BW")):
            for name, load_step in ((way, -1), (f"{way}, resumed", SAVE_AT)):
                made = config(folder / way, schedule, load_step)
                found[name] = losses_of(WAYS[way](names, made))
        found["refused"] = refused(names, folder)
        if found["pipelined"]["training"][0] > 0:  # on the last stage; others have none
            (folder / "losses.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
