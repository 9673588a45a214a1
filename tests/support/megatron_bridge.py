# ruff: noqa: I001, E402  the stand-in for GPUs comes before Megatron
"""Megatron-Bridge's own train step on CPUs, a rank per stage, by 2BW: a program.

    python -m tests.support.megatron_bridge FOLDER

It writes its largest differences from the plain loop to FOLDER/megatron_bridge.json. Of what Bridge
imports and no CPU can run, such as Transformer Engine, modules without content stand in, after
Megatron Core, which then goes without them: models are Megatron Core's. Bridge's `pretrain`, which
starts from CUDA devices and NCCL, does not run.
"""

import json
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from tests.support.megatron_gpt import MICRO, UPDATES, Setting, batch_of, begin, config_of
from tests.support.megatron_gpt import LENGTH, differences, forward_step, initial_weights
from tests.support.megatron_gpt import plain_loop, scheduler_of, wrapped
import torch
import torch.distributed as dist
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.process_groups_config import ProcessGroupCollection

ABSENT = "transformer_engine nvidia_resiliency_ext mamba_ssm causal_conv1d modelopt triton einops"
ABSENT += " qwen_vl_utils nvdlfw_inspect timm open_clip mlflow fla"


class Empty(MetaPathFinder, Loader):
    """Finds the packages of ABSENT, whose classes are modules and whose functions are mocks."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        is_absent = name.partition(".")[0] in ABSENT.split()
        return ModuleSpec(name, self, is_package=True) if is_absent else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)

        def member(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (torch.nn.Module,), {}) if name[0].isupper() else MagicMock(name=name)

        module.__getattr__ = member  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(Empty())

from megatron.bridge.training import eval as evaluation
from megatron.bridge.training import optim, pretrain, train

from pipegap.trainer.megatron.schedule import install
from tests.support.processes import on_ranks


def main(folder: Path) -> None:
    begin()
    setting = Setting("ef", pp=2)
    saved: list[torch.Tensor] = []
    whole = initial_weights(setting)
    right = plain_loop(whole, setting, late=1)
    begin(2)
    train.save_checkpoint_and_time = lambda model: saved.extend(
        w.clone() for w in model.parameters()
    )
    install(train, optim, evaluation, pretrain, error_feedback=1.0)
    config = config_of(setting)
    model, plain = wrapped(config, setting, whole)
    config.seq_length = LENGTH
    of_scheduler = {"lr_decay_style": "linear", "lr_warmup_init": 0.0, "lr_warmup_steps": 0}
    of_scheduler |= {"lr_decay_steps": 8, "start_weight_decay": 0.1, "end_weight_decay": 0.1}
    of_scheduler |= {"wd_incr_steps": 0, "weight_decay_incr_style": "constant"}
    of_scheduler |= dict.fromkeys(("use_checkpoint_opt_param_scheduler", "wsd_decay_steps"))
    of_scheduler |= dict.fromkeys(("override_opt_param_scheduler", "lr_wsd_decay_style"))
    overrides = SimpleNamespace(build_config_overrides=lambda _: None)
    optimizer, _ = optim.setup_optimizer(
        plain.config, SimpleNamespace(**of_scheduler), [model], False, None, overrides
    )
    scheduler = scheduler_of(optimizer)
    m = setting.microbatches
    init_num_microbatches_calculator(dist.get_rank(), None, m * MICRO, MICRO, 1)
    cfg = SimpleNamespace(
        train=SimpleNamespace(micro_batch_size=MICRO, empty_unused_memory_level=0),
        optimizer=plain.config,
        ddp=model.ddp_config,
        dataset=SimpleNamespace(dataloader_type="single"),
        dist=SimpleNamespace(use_decentralized_pg=True),
        model=config,
        data_parallel_size=1,
    )
    state = SimpleNamespace(cfg=cfg, timers=MagicMock())
    groups = ProcessGroupCollection.use_mpu_process_groups()
    run = train.get_forward_backward_func(pp_size=2, vp_size=None)
    each_update = SimpleNamespace(step=lambda increment: scheduler.step(1))
    losses, norms = [], []
    for t in range(UPDATES):
        options = batch_of(t, m), [model], optimizer, each_update, state, groups, run
        logged, is_skipped, *_, norm, _, _ = train.train_step(forward_step, *options)
        losses += [*logged.values()]
        norms += [] if is_skipped else [norm]
    train.save_checkpoint_and_time(model)
    of_batches = right["losses"].view(UPDATES, m).mean(1)
    gaps = differences(setting, model, [], norms, right)
    if losses:
        gaps["losses"] = float((torch.stack(losses) - of_batches).abs().max())
        gaps["num_losses"] = len(losses)
        gaps["is_saved"] = all(map(torch.equal, saved, model.parameters()))
        (folder / "megatron_bridge.json").write_text(json.dumps(gaps))


if __name__ == "__main__":
    on_ranks(2, main, Path(sys.argv[1]))
