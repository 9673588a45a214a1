# ruff: noqa: I001, E402  the stand-in for GPUs comes before Megatron
"""Megatron-LM's own pretrain_gpt.py on CPUs, a rank per stage: a program for torchrun.

    MEGATRON_LM=… torchrun --nproc-per-node 2 -m tests.support.megatron_lm FOLDER WAY OPTIONS

MEGATRON_LM is a checkout, and OPTIONS are Megatron-LM's. WAY is `1F1B`, `2BW` (docs/megatron.md's
lines) or `delayed` (1F1B by `DelayedSteps`). The last rank writes the losses of training and
validation to FOLDER/WAY.json. Beside what tests/support/megatron_cpu.py puts in the place of a GPU
there are here streams, numbers of memory, the compilation of helpers and kernels, and torch's
compiler, which is switched off.
"""

import json
import os
import runpy
import sys
from collections import defaultdict
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import tests.support.megatron_cpu  # noqa: F401
import torch
import torch.distributed as dist

CHECKOUT = Path(os.environ["MEGATRON_LM"])
sys.path.insert(0, str(CHECKOUT))


class Stream:
    """Work is done when its call returns."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass


ON_GPU: dict[str, Any] = {
    "is_available": True,
    "device_count": 1,
    "get_device_capability": (9, 0),
    "get_device_properties": SimpleNamespace(
        total_memory=2**30, major=9, minor=0, name="CPU", multi_processor_count=1
    ),
    "memory_stats": defaultdict(int),
    **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved"), 0),
    **dict.fromkeys(("max_memory_reserved", "reset_peak_memory_stats", "empty_cache"), 0),
    **dict.fromkeys(("current_stream", "default_stream"), Stream()),
    "stream": nullcontext(),
    "set_device": None,
}
for name, value in ON_GPU.items():
    setattr(torch.cuda, name, lambda *_, value=value, **__: value)
torch.cuda.Stream = Stream  # type: ignore[assignment,misc]

from megatron.core.datasets import utils
from megatron.legacy import fused_kernels
from megatron.training import training

from pipegap.trainer.megatron.optimizers import DelayedSteps
from pipegap.trainer.megatron.schedule import install

utils.compile_helpers = lambda: None
fused_kernels.load = lambda *_: None
LENGTH, STEPS = 16, 6
WORDS = f"""
    --distributed-backend gloo --pipeline-model-parallel-size 2 --num-layers 4 --hidden-size 32
    --num-attention-heads 2 --seq-length {LENGTH} --max-position-embeddings {LENGTH}
    --micro-batch-size 2 --global-batch-size 8 --train-iters {STEPS} --lr 0.01 --min-lr 0.001
    --lr-decay-style linear --lr-decay-iters 8 --mock-data --tokenizer-type NullTokenizer
    --vocab-size 64 --transformer-impl local --use-cpu-initialization --attention-dropout 0
    --hidden-dropout 0 --no-gradient-accumulation-fusion --no-persist-layer-norm
    --no-masked-softmax-fusion --no-bias-swiglu-fusion --no-bias-gelu-fusion
    --no-bias-dropout-fusion --no-rope-fusion --rerun-mode disabled --log-interval 1
    --eval-interval 3 --eval-iters 1 --untie-embeddings-and-output-weights --num-workers 0
    --ckpt-format torch_dist --seed 1 --no-create-attention-mask-in-dataloader
"""


def main(folder: Path, way: str, options: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    found: dict[str, list[float]] = {"training": [], "validation": []}
    if way == "2BW":
        install(training, error_feedback=1.0)
    elif way == "delayed":
        delayed = delay(training)
    train_step, evaluate = training.train_step, training.evaluate

    def watched_step(*args: Any, **named: Any) -> Any:
        result = train_step(*args, **named)
        found["training"] += [loss.item() for loss in result[0].values()]
        return result

    def watched_evaluation(*args: Any, **named: Any) -> Any:
        with delayed[0].newest() if way == "delayed" else nullcontext():
            result = evaluate(*args, **named)
        found["validation"] += [loss.item() for loss in result[0].values()]
        return result

    training.train_step, training.evaluate = watched_step, watched_evaluation
    script = str(CHECKOUT / "pretrain_gpt.py")
    sys.argv = [script, *WORDS.split(), *options]
    with suppress(SystemExit):  # of --exit-interval
        runpy.run_path(script, run_name="__main__")
    if found["training"]:
        (folder / f"{way}.json").write_text(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()


def delay(module: Any) -> list[DelayedSteps]:
    """Delays the optimizer of a training loop, when it is made."""
    made: list[DelayedSteps] = []
    make = module.get_megatron_optimizer

    def get_megatron_optimizer(*args: Any, **named: Any) -> Any:
        optimizer = make(*args, **named)
        made.append(DelayedSteps(optimizer))
        return optimizer

    module.get_megatron_optimizer = get_megatron_optimizer
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
