# ruff: noqa: I001  the stand-in for GPUs comes before Megatron
"""What ranks of Megatron Core train, beside the plain loop: a program.

    python -m tests.support.megatron_run FOLDER PLANS

PLANS is JSON: a number of ranks, which are forks of this process, and their plan, which has names
of functions below, each with a list of arguments of `Setting`. Without Transformer Engine, which
`te` asks for, it needs no GPU. What functions return is written to FOLDER/N.json by their names.
`loops` leaves the plain loops in FOLDER/loops.pt. On GPUs (docs/megatron.md) torchrun starts the
ranks, and PLANS is a name of `ON_GPUS`.
"""

import json
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.optim._functional import adamw

from tests.support.megatron_cpu import DEVICE  # before anything of Megatron
from tests.support.megatron_gpt import (
    CORRECTIONS,
    LENGTH,
    MICRO,
    UPDATES,
    Setting,
    batch_of,
    begin,
    config_of,
    differences,
    forward_step,
    initial_weights,
    plain_loop,
    saves_views,
    scheduler_of,
    wrapped,
)

from megatron.core import dist_checkpointing, optimizer, parallel_state
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.optimizer import distrib_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.rerun_state_machine import RerunMode, get_rerun_state_machine
from megatron.core.utils import get_attr_wrapped_model

from pipegap.trainer.corrections.ema_nesterov import EmaNesterov
from pipegap import Megatron2BW
from pipegap.trainer.megatron.optimizers import DelayedSteps
from pipegap.trainer.megatron.stage import TwoSets, WaitingGradient
from tests.support.processes import on_ranks

DRAINED_AFTER = 0, 2, 3


class Loop:
    """A training loop of Megatron's, by its own 1F1B or by 2BW."""

    def __init__(
        self, setting: Setting, whole: dict[str, torch.Tensor], *, is_2bw: bool, **options: Any
    ) -> None:
        self.setting, self.is_2bw = setting, is_2bw
        self.model, self.optimizer = wrapped(config_of(setting), setting, whole)
        self.scheduler = scheduler_of(self.optimizer)
        self.run, self.step = get_forward_backward_func(), self.optimizer.step
        if is_2bw:
            error_feedback = 1.0 if setting.has("ef") else 0.0
            start = 2 if setting.has("start") else 0
            options = {"error_feedback": error_feedback, "synchronous_start": start, **options}
            for word, correction in CORRECTIONS.items():
                if setting.has(word):
                    options |= {"correction": correction, "num_updates": UPDATES}
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


def loops(folder: Path, settings: list[Setting]) -> int:
    """Makes the plain loop of every setting, each on one of the ranks; returns how many."""
    begin()
    late_ones = [(setting, 1) for setting in settings]
    controls = [(setting, 0) for setting in settings if setting.has("control")]
    keys = {setting.loop(late): (setting, late) for setting, late in late_ones + controls}
    kept: dict[Any, Any] = {setting.whole: initial_weights(setting) for setting in settings}
    for number, (key, (setting, late)) in enumerate(keys.items()):
        if number % dist.get_world_size() == dist.get_rank():
            with saves_views(setting):
                kept[key] = plain_loop(kept[setting.whole], setting, late)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, kept)
    if dist.get_rank() == 0:
        joined = {key: value for of_rank in every for key, value in of_rank.items()}
        torch.save(joined, folder / "loops.pt")
    dist.barrier()
    return len(keys)


def numbers(folder: Path, settings: list[Setting], kept: Any) -> dict[str, Any]:
    """How far 1F1B and 2BW are from the plain loop."""
    found: dict[str, Any] = {}
    for setting in settings:
        begin(setting.pp, setting.tp)
        ways = {"1F1B": False, "2BW": True} if setting.has("control") else {"2BW": True}
        for way, is_2bw in ways.items():
            with saves_views(setting):
                loop = Loop(setting, kept[setting.whole], is_2bw=is_2bw)
                loop.train(0, UPDATES)
            gaps = loop.differences(kept[setting.loop(int(is_2bw))])
            found[f"{way} {setting}"] = gaps
            if setting.has("tied"):
                found[f"{way} {setting}"]["copies"] = copies_differ(loop)
    return found


def copies_differ(loop: Loop) -> float:
    """The largest difference between the first and the last stage's copy of a tied weight."""
    module = get_attr_wrapped_model(loop.model, "pre_process", return_model_obj=True)
    if not (module.pre_process or module.post_process):
        return 0.0
    copy = module.shared_embedding_or_output_weight().detach().float()
    group = parallel_state.get_embedding_group()
    largest, least = copy.clone(), copy.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    dist.all_reduce(least, dist.ReduceOp.MIN, group=group)
    return float((largest - least).max())


class FusedAdam(torch.optim.Optimizer):
    """AdamW that keeps its number of steps in the group, as Apex's and Transformer Engine's do:
    without one of these Megatron does not load its DistributedOptimizer."""

    def __init__(self, params: Any, adam_w_mode: bool, **options: Any) -> None:
        assert adam_w_mode
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            weights = [weight for weight in group["params"] if weight.grad is not None]
            states = [self.state[weight] for weight in weights]
            for weight, state in zip(weights, states, strict=True):
                if not state:
                    state |= {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
            adamw(
                weights,
                [weight.grad for weight in weights],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [torch.tensor(group["step"] - 1.0) for _ in weights],
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )


def use_fused_adam() -> None:
    """From now on, in this process."""
    optimizer.Adam = distrib_optimizer.Adam = FusedAdam
    optimizer.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True


def sharded(loop: Loop, *, is_loading: bool) -> dict[str, Any]:
    """What Megatron-LM's generate_state_dict makes of a run."""
    metadata = {"distrib_optim_sharding_type": "dp_reshardable"}
    model = {"model": loop.model.module.sharded_state_dict()}
    state = loop.optimizer.sharded_state_dict(model["model"], is_loading, metadata=metadata)
    return {**model, "optimizer": state, "scheduler": loop.scheduler.state_dict()}


def resumed(folder: Path, settings: list[Setting], kept: Any) -> dict[str, Any]:
    """How far runs are from the plain loop that Megatron saved after 2 or 3 batches, and loaded."""
    use_fused_adam()
    found = {}
    for setting, at in product(settings, (2, 3)):
        if at == 2 and not setting.has("ef"):  # a correction's memory does not depend on the set
            continue
        begin(setting.pp, setting.tp)
        whole, place = kept[setting.whole], folder / f"checkpoint_{setting}_{at}"
        blank = {name: torch.zeros_like(weight) for name, weight in whole.items()}
        before, after = (Loop(setting, of, is_2bw=True) for of in (whole, blank))
        before.train(0, at)
        if dist.get_rank() == 0:
            place.mkdir()
        dist.barrier()
        with before.pipeline.drained():
            dist_checkpointing.save(sharded(before, is_loading=False), str(place))
        state = dist_checkpointing.load(sharded(after, is_loading=True), str(place))
        after.model.module.load_state_dict(state["model"])
        after.optimizer.load_state_dict(state["optimizer"])
        after.scheduler.load_state_dict(state["scheduler"])
        after.train(at, UPDATES)
        after.norms.clear()
        found[f"{setting} after {at}"] = after.differences(kept[setting.loop(1)])
    return found


def told(call: Callable[[], object]) -> list[str]:
    """What each rank is told."""
    text = "nothing"
    try:
        call()
    except Exception as error:
        text = f"{type(error).__name__} {error}"
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, text)
    return every


def refused(folder: Path, settings: list[Setting], kept: Any) -> dict[str, Any]:
    """What cannot be, before anything is trained and later."""
    setting = Setting("bf16+dist+ef")
    return {**refused_at_first(setting, kept), **refused_later(setting, kept)}


def refused_at_first(setting: Setting, kept: Any) -> dict[str, Any]:
    begin(2)
    said, whole = {}, kept[setting.whole]
    for name, value in REFUSED.items():
        model, made = wrapped(config_of(setting), setting, whole)
        configs = model.config, model.ddp_config, made.config
        [holder] = [of for of in configs if hasattr(of, name)][:1]
        with patch.object(holder, name, value):
            said[name] = told(lambda model=model, made=made: Megatron2BW(model, made))
    model, made = wrapped(config_of(setting), setting, whole)
    said["chunks"] = told(lambda: Megatron2BW([model, model], made))
    said["wrapper"] = told(lambda: Megatron2BW(model.module, made))
    ahead = partial(EmaNesterov, look_ahead=1.0, decay=0.9, start=0, rest=0, coefficient=1.0)
    for correction in (ahead, CORRECTIONS["adaptive"]):
        options = {"correction": correction, "num_updates": UPDATES}
        name = correction.func.__name__
        said[name] = told(lambda options=options: Megatron2BW(model, made, **options))
    machine = get_rerun_state_machine()
    machine.set_mode(RerunMode.VALIDATE_RESULTS)
    said["rerun"] = told(lambda: Megatron2BW(model, made))
    machine.set_mode(RerunMode.DISABLED)
    if dist.get_rank() == 1:
        del model.bucket_groups[0].cached_param_buffer_shard_list
    said["names"] = told(lambda: Megatron2BW(model, made))
    return said


def refused_later(setting: Setting, kept: Any) -> dict[str, Any]:
    begin(2)
    said, loop = {}, Loop(setting, kept[setting.whole], is_2bw=True)
    said["few microbatches"] = told(lambda: loop.call(0, num_microbatches=0))
    loop.train(0, 2)
    said["evaluation"] = told(lambda: loop.call(2, forward_only=True))
    said["saving"] = told(lambda: sharded(loop, is_loading=False))
    said["microbatches"] = told(lambda: loop.call(2, num_microbatches=8))
    said["length"] = told(lambda: loop.call(2, seq_length=2 * LENGTH))
    said["option"] = told(lambda: loop.call(2, force_all_reduce=True))
    loop.call(2)
    said["no step"] = told(lambda: loop.call(3))
    loop.step()
    way = {"distrib_optim_sharding_type": "fully_reshardable"}
    with loop.pipeline.drained():
        state = loop.model.module.sharded_state_dict()
        said["sharding"] = told(lambda: loop.optimizer.sharded_state_dict(state, metadata=way))
    if dist.get_rank() == 0:
        with torch.no_grad():
            next(loop.model.parameters()).fill_(torch.nan)
    loop.train(3, 4)
    said["not finite"] = told(lambda: loop.train(4, 6))
    said["afterwards"] = told(lambda: loop.train(6, 7))
    return said


REFUSED = {
    "virtual_pipeline_model_parallel_size": 2,
    "fp8": "hybrid",
    "fp4": "e2m1",
    "fp16": True,
    "cuda_graph_impl": "local",
    "calculate_per_token_loss": True,
    "defer_embedding_wgrad_compute": True,
    "variable_seq_lengths": True,
    "moe_router_enable_expert_bias": True,
    "moe_router_load_balancing_type": "global_aux_loss",
    "mtp_num_layers": 1,
    "use_megatron_fsdp": True,
    "use_precision_aware_optimizer": True,
    "optimizer_cpu_offload": True,
    "cpu_offloading": True,
    "log_num_zeros_in_grad": True,
    "num_distributed_optimizer_instances": 2,
}


class Sleep(torch.autograd.Function):
    """Takes as long as a forward and a backward of a large model, without a processor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_TIME)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        time.sleep(2 * FORWARD_TIME)
        return gradient


FORWARD_TIME = 0.1
BATCHES = 5


def slept(folder: Path, settings: list[Setting], kept: Any) -> dict[str, Any]:
    """Seconds of a batch, their median, over those of its passes, on the slowest rank."""
    setting, found = Setting("clip", pp=4), {}
    begin(4)

    def slow_step(iterator: Any, model: Any) -> Any:
        output, loss_of = forward_step(iterator, model)
        return Sleep.apply(output), loss_of

    for way, is_2bw in {"1F1B": False, "2BW": True, "2BW with reductions": True}.items():
        loop = Loop(setting, kept[setting.whole], is_2bw=is_2bw)
        began = []
        for t in range(BATCHES):
            began.append(time.perf_counter())
            loop.model.zero_grad_buffer()
            loop.optimizer.zero_grad()
            loop.call(t, forward_step_func=slow_step)
            _, norm, _ = loop.step()
            if "reductions" in way:  # as Megatron-LM's loop, without `install`
                value = torch.tensor([norm or -1.0])
                group = parallel_state.get_model_parallel_group()
                dist.all_reduce(value, dist.ReduceOp.MAX, group=group)
                value.item()
        began.append(time.perf_counter())
        seconds = median(end - start for start, end in pairwise(began[2:]))
        with loop.pipeline.drained() if is_2bw else nullcontext():
            every: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(every, seconds)
        found[way] = max(every) / (3 * FORWARD_TIME * setting.microbatches)
    return found


def messages(folder: Path, settings: list[Setting], kept: Any) -> dict[str, Any]:
    """Whether all messages have left when a call ends, though no rank goes on."""
    setting = Setting("ef", pp=4)
    begin(4)
    loop = Loop(setting, kept[setting.whole], is_2bw=True, trace=True)
    for t in range(3):
        loop.train(t, t + 1)
        loop.pipeline._passes.neighbours.flush()
        dist.barrier()
    with loop.pipeline.drained():
        loop.pipeline.write_trace(folder)
    return {"num_left": len(loop.pipeline._passes.neighbours._leaving)}


@contextmanager
def shows_the_newest_weights() -> Iterator[None]:
    with patch.object(TwoSets, "version", lambda self, batch: self._newest):
        yield


@contextmanager
def steps_in_one_set() -> Iterator[None]:
    move = TwoSets._move
    with patch.object(TwoSets, "_move", lambda self, _: move(self, 0)):
        yield


@contextmanager
def leaves_gradients_in_the_buffer() -> Iterator[None]:
    init = WaitingGradient.__init__

    def uncloned(self: Any, *given: Any) -> None:
        with patch.object(torch.Tensor, "clone", lambda gradient: gradient):
            init(self, *given)

    with patch.object(WaitingGradient, "__init__", uncloned):
        yield


def after_construction(change: Callable[[Loop], object]) -> AbstractContextManager[Any]:
    init = Loop.__init__

    def changed(self: Loop, *given: Any, **options: Any) -> None:
        init(self, *given, **options)
        change(self)

    return patch.object(Loop, "__init__", changed)


def zeroes_the_buffer(loop: Loop) -> None:
    loop.model.zero_grad_buffer = loop.pipeline._zero_buffer


def halves_the_feedback(loop: Loop) -> None:
    for steps in loop.pipeline._steps:
        steps.correction.inner.coefficient /= 2


def steps_the_scheduler_early(loop: Loop) -> None:
    loop.scheduler.step(1)


def reports_no_drained_update(loop: Loop) -> None:
    drained = loop.pipeline.drained

    @contextmanager
    def unreported() -> Iterator[None]:
        with drained():
            loop.pipeline._is_reported = True
            yield

    loop.pipeline.drained = unreported  # type: ignore[method-assign]


@contextmanager
def gathers_when_gradients_are_summed() -> Iterator[None]:
    """As Megatron does, and not when they change."""

    @contextmanager
    def update(self: Any, version: int) -> Iterator[None]:
        self._move(version % 2)
        yield

    with (
        patch.object(TwoSets, "without_gathers", lambda self: nullcontext()),
        patch.object(TwoSets, "update", update),
    ):
        yield


@contextmanager
def gathers_nothing_in_drains() -> Iterator[None]:
    with patch.object(TwoSets, "gather", lambda self: None):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "none": nullcontext,
    "shows the newest weights": shows_the_newest_weights,
    "steps in one set": steps_in_one_set,
    "leaves gradients in the buffer": leaves_gradients_in_the_buffer,
    "zeroes the buffer": partial(after_construction, zeroes_the_buffer),
    "half of λ": partial(after_construction, halves_the_feedback),
    "an early scheduler": partial(after_construction, steps_the_scheduler_early),
    "no report of a drained update": partial(after_construction, reports_no_drained_update),
}
OF_GATHERS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "none": nullcontext,
    "gathers when gradients are summed": gathers_when_gradients_are_summed,
    "no gathers in drains": gathers_nothing_in_drains,
}


def mutated(folder: Path, settings: list[Setting], kept: Any) -> dict[str, Any]:
    """How far the loop's numbers are with each mistake."""
    found: dict[str, Any] = {}
    [setting] = settings
    for name, mutation in (OF_GATHERS if setting.has("gather") else MUTATIONS).items():
        begin(setting.pp, setting.tp)
        with mutation():
            loop = Loop(setting, kept[setting.whole], is_2bw=True)
            loop.train(0, UPDATES)
            gaps = loop.differences(kept[setting.loop(1)])
        found[name] = max(gaps["losses"], gaps["weights"])
    return found


def delayed(folder: Path, settings: list[Setting], kept: Any) -> dict[str, Any]:
    """How far 1F1B with `DelayedSteps` is from the plain loop of 2BW, resumed and not."""
    use_fused_adam()
    found = {}
    for setting in settings:
        begin(setting.pp, setting.tp)
        whole, place = kept[setting.whole], folder / f"delayed_{setting}"
        right, at = kept[setting.loop(1)], 3
        first, second = (Loop(setting, whole, is_2bw=False) for _ in range(2))
        steps = [DelayedSteps(loop.optimizer) for loop in (first, second)]
        first.train(0, at)
        evaluated = []
        with steps[0].newest():
            evaluated.append([weight.detach().clone() for weight in first.model.parameters()])
        if dist.get_rank() == 0:
            place.mkdir()
        dist.barrier()
        dist_checkpointing.save(sharded(first, is_loading=False), str(place))
        state = dist_checkpointing.load(sharded(second, is_loading=True), str(place))
        second.model.module.load_state_dict(state["model"])
        second.optimizer.load_state_dict(state["optimizer"])
        second.scheduler.load_state_dict(state["scheduler"])
        for name, loop, of in (("whole", first, steps[0]), ("resumed", second, steps[1])):
            loop.train(at, UPDATES)
            with of.newest():
                loop.norms.clear()
                found[f"{name} {setting}"] = loop.differences(right)
    return found


def timed(folder: Path, settings: list[Setting], _: Any) -> dict[str, Any]:
    """Seconds of a batch by 1F1B and by 2BW, on the slowest rank."""
    found = {}
    for setting, is_2bw in product(settings, (False, True)):
        begin(setting.pp, setting.tp)
        loop = Loop(setting, {}, is_2bw=is_2bw)
        loop.train(0, 3)
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        loop.train(3, 3 + TIMED)
        torch.cuda.synchronize()
        seconds = torch.tensor([time.perf_counter() - began], device=DEVICE)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        found[f"{'2BW' if is_2bw else '1F1B'} {setting}"] = seconds.item() / TIMED
        with loop.pipeline.drained() if is_2bw else nullcontext():
            dist.barrier()
    return found


TIMED = 10
"""Batches."""
PROGRAMS = {
    of.__name__: of for of in (numbers, resumed, refused, slept, messages, mutated, delayed, timed)
}


def main(folder: Path, plan: dict[str, Any]) -> None:
    """What each rank runs."""
    found: dict[str, Any] = {}
    for program, arguments in plan.items():
        settings = [Setting(*of) for of in arguments]
        if program == "loops":
            found[program] = loops(folder, settings)
        else:
            path = folder / "loops.pt"
            kept = torch.load(path, map_location=DEVICE) if path.exists() else {}
            found[program] = PROGRAMS[program](folder, settings, kept)
    if dist.get_rank() == 0:
        print(json.dumps(found, indent=1))
        (folder / f"{dist.get_world_size()}.json").write_text(json.dumps(found))


SETTINGS = [["te+bf16+ef+control", 2], ["te+bf16+dist+drain+ef+control", 2]]
ON_GPUS: dict[str, dict[str, Any]] = {
    "oracles": {"loops": SETTINGS, "numbers": SETTINGS},
    "time": {"timed": [["te+bf16+dist+overlap+gather+fused+free", 2]]},
}
"""For the first GPU: docs/megatron.md."""

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        dist.init_process_group("nccl")
        main(folder, ON_GPUS[sys.argv[2]])
        dist.destroy_process_group()
    else:
        # Megatron's own would be in a process that it spawns, and that imports all of this.
        filesystem_async._results_queue = queue.SimpleQueue()
        for num_ranks, plan in json.loads(sys.argv[2]).items():
            on_ranks(int(num_ranks), main, folder, plan)
