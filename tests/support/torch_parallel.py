"""The toy pipeline on several ranks per stage, wrapped as users wrap their stages (sharded, cut,
compiled, …); and what torch's own Schedule1F1B makes of the same stages with `DelayedOptimizer`, by
another clip."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from pipegap.trainer.base.resources import rank_device
from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.ranks.groups import Heartbeat, joined
from pipegap.trainer.torch_pipelining import Schedule2BW
from tests.support import toy
from tests.support.gangs import Send, sent
from tests.support.torch_naive import expected
from tests.support.torch_pipeline import OPTIMIZERS, TIGHT, Case, T, batch, modules, newton_schulz

MICROBATCHES = 4
EVALUATED_BEFORE, CALLED_BEFORE = 3, (5, 6)
"""Batches."""
Weights = dict[str, Tensor]


def blocks(module: nn.Module) -> list[nn.Module]:
    return [block for block in module.modules() if isinstance(block, toy.Block)]


def fsdp(module: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    for block in blocks(module):
        fully_shard(block, mesh=mesh["data"], **options)
    return fully_shard(module, mesh=mesh["data"], **options)


def ddp(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(module, process_group=mesh["data"].get_group())


def tensor_parallel(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Blocks are cut; norms, embedding and head stay whole on both ranks."""
    for block in blocks(module):
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["tensor"], plan)
    return module


def both(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return fsdp(tensor_parallel(module, mesh), mesh)


def checkpointed(module: nn.Module, _: DeviceMesh, **options: Any) -> nn.Module:
    for block in blocks(module):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)
    return module


def compiled(module: nn.Module, _: DeviceMesh, **options: Any) -> nn.Module:
    module.compile(**options)
    return module


def autocast(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    module.forward = torch.autocast(mesh.device_type, torch.bfloat16)(module.forward)
    return module


class TwoTensors(nn.Module):
    """A stage that takes and gives two tensors, and a keyword argument for each row."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, side: Tensor | None = None, *, gain: Tensor) -> Any:
        gain = gain[:, None, None]
        if side is None:
            h = self.inner(x)
            return h, torch.tanh(h * gain)
        return self.inner(x + gain * side)


@dataclass(frozen=True)
class Setting:
    """How stages are wrapped, on how many ranks per stage, and whether `data` divides batches."""

    wrap: Callable[[nn.Module, DeviceMesh], nn.Module]
    data: int = 1
    tensor: int = 1
    keywords: Mapping[str, Tensor] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    optimizer: str = "adamw"


GAIN = {"gain": torch.linspace(0.5, 1.5, len(batch(0)[0]), dtype=torch.float64)}

MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

SAVE_PRODUCTS = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])

SETTINGS: dict[str, Setting] = {
    "fsdp2": Setting(fsdp, data=2),
    "fsdp2, bf16": Setting(partial(fsdp, mp_policy=MIXED), data=2, dtype=torch.float32),
    "ddp": Setting(ddp, data=2),
    "tp": Setting(tensor_parallel, tensor=2),
    "fsdp2 and tp": Setting(both, data=2, tensor=2),
    **{
        f"{name}, {optimizer}": Setting(wrap, data, tensor, optimizer=optimizer)
        for name, wrap, data, tensor in (
            ("fsdp2", fsdp, 2, 1),
            ("tp", tensor_parallel, 1, 2),
            ("fsdp2 and tp", both, 2, 2),
        )
        for optimizer in ("torch_muon", "dist_muon")
    },
    "autocast": Setting(autocast, dtype=torch.float32),
    "full checkpointing": Setting(checkpointed),
    "selective checkpointing": Setting(partial(checkpointed, context_fn=SAVE_PRODUCTS)),
    "aot_eager": Setting(partial(compiled, backend="aot_eager")),
    "inductor": Setting(compiled),
    "two tensors": Setting(lambda module, _: TwoTensors(module), keywords=GAIN),
}


class Training:
    """The loop of a user, on this rank's stage of two."""

    def __init__(self, setting: Setting, mesh: DeviceMesh, device: torch.device) -> None:
        self.setting, self.mesh, self.device = setting, mesh, device
        self.rank = mesh.get_local_rank("pipeline")
        self.plain = modules(2, setting.dtype)[self.rank].to(device)
        self.newest = self._wrapped()
        self.weights = dict(self.newest.named_parameters())

    def _wrapped(self) -> nn.Module:
        return self.setting.wrap(copy.deepcopy(self.plain), self.mesh)

    def _stage(self) -> PipelineStage:
        group = self.mesh.get_group("pipeline")
        return PipelineStage(self.newest, self.rank, 2, self.device, group=group)

    def delayed(self) -> Weights:
        """Trains by Schedule2BW. A batch follows an evaluation, and then a direct call of the first
        stage, after which FSDP2 keeps whole weights; another one follows this and a load."""
        optimizer = OPTIMIZERS[self.setting.optimizer](self.newest)
        scheduler = LambdaLR(optimizer, toy.lr_factor)

        def update() -> None:
            schedule.clip_grad_norm_(TIGHT)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

        schedule = Schedule2BW(
            self._stage(),
            MICROBATCHES,
            toy.loss,
            update=update,
            error_feedback=1.0,
            twins=[self._wrapped(), self._wrapped()],
        )
        for t in range(T):
            if t == EVALUATED_BEFORE:
                with schedule.drained():
                    self._evaluate(schedule)
            if t in CALLED_BEFORE:
                with schedule.drained() as newest:
                    self._call(newest, optimizer)
                    if t == max(CALLED_BEFORE):
                        schedule.load_state_dict(schedule.state_dict())
            self._step(schedule, t)
        with schedule.drained():
            return self._weights()

    def emulated(self) -> Weights:
        """Trains by Schedule1F1B, whose optimizer makes the delay."""
        schedule = Schedule1F1B(self._stage(), MICROBATCHES, toy.loss)
        optimizer = DelayedOptimizer(
            OPTIMIZERS[self.setting.optimizer](self.newest), error_feedback=1.0
        )
        scheduler = LambdaLR(optimizer, toy.lr_factor)
        for t in range(T):
            if t == EVALUATED_BEFORE:
                with optimizer.newest():
                    self._evaluate(schedule)
            self._step(schedule, t)
            self._clip()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        with optimizer.newest():
            return self._weights()

    @torch.no_grad()
    def _evaluate(self, schedule: Schedule1F1B) -> None:
        self._step(schedule, 0, "eval")

    @torch.no_grad()
    def _call(self, newest: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """The first stage computes on the weights that the optimizer has now."""
        if self.rank == 0 and isinstance(newest, FSDPModule):
            rows, plain = self._mine(batch(0)[0]), copy.deepcopy(self.plain)
            has = [weight for group in optimizer.param_groups for weight in group["params"]]
            named = {id(weight): name for name, weight in self.weights.items()}
            for weight, now in ((plain.get_parameter(named[id(w)]), w) for w in has):
                weight.copy_(_whole(now))
            tolerance = 1e-12 if self.setting.dtype == torch.float64 else 1e-2
            torch.testing.assert_close(
                newest(rows), plain(rows), rtol=0, atol=tolerance, check_dtype=False
            )

    def _step(self, schedule: Schedule1F1B, t: int, call: str = "step") -> None:
        x, y = (self._mine(rows) for rows in batch(t))
        keywords = {name: self._mine(value) for name, value in self.setting.keywords.items()}
        inputs = (x,) if self.rank == 0 else ()
        getattr(schedule, call)(*inputs, target=y if self.rank == 1 else None, **keywords)

    def _mine(self, rows: Tensor) -> Tensor:
        """This replica's rows of each microbatch."""
        replica = self.mesh.get_local_rank("data")
        parts = [part.chunk(self.setting.data)[replica] for part in rows.chunk(MICROBATCHES)]
        return torch.cat(parts).to(self.device)

    def _clip(self) -> None:
        """By sums of squares of whole gradients."""
        gradients = [w.grad for w in self.newest.parameters() if w.grad is not None]
        square = sum(
            (_whole(gradient).square().sum() for gradient in gradients),
            torch.zeros((), dtype=self.setting.dtype, device=self.device),
        )
        dist.all_reduce(square, group=self.mesh.get_group("pipeline"))
        for gradient in gradients:
            gradient.mul_((TIGHT / (square.sqrt() + 1e-6)).clamp(max=1.0))

    def _weights(self) -> Weights:
        prefixes = ("module.", "inner.")
        named = [(n, w.detach()) for n, w in self.newest.named_parameters()]
        for prefix in prefixes:
            named = [(n.removeprefix(prefix), w) for n, w in named]
        return {n: _whole(w).cpu().clone() for n, w in named}


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def as_rank(
    store: dist.Store,
    heartbeat: Heartbeat,
    send: Send,
    names: Sequence[str],
    device_name: str = "cpu",
) -> None:
    """Sends, for each setting, the weights by Schedule2BW and by the emulated delay."""
    torch.set_num_threads(1)
    shape = {(SETTINGS[name].data, SETTINGS[name].tensor) for name in names}.pop()
    world = 2 * shape[0] * shape[1]
    device = rank_device(device_name, heartbeat.rank, world)
    with joined(store, heartbeat.rank, world, 1, device, heartbeat, 120), muon_without_bf16():
        axes = ("pipeline", "data", "tensor")
        mesh = init_device_mesh(device.type, (2, *shape), mesh_dim_names=axes)
        for name in names:
            ours, emulated = (Training(SETTINGS[name], mesh, device) for _ in range(2))
            send((ours.delayed(), emulated.emulated()))


def muon_without_bf16() -> Any:
    return patch("torch.optim._muon._zeropower_via_newtonschulz", newton_schulz)


OWN_EQUATIONS = ("two tensors", "fsdp2, bf16", "autocast")
"""Settings that compute something else than the equations: the emulated delay alone is right."""


def assert_close(weights: Weights, right: Weights) -> None:
    """But for rounding: with compute in bf16 that is of fp32 masters."""
    for key, weight in weights.items():
        tolerance = 1e-6 if weight.dtype == torch.float32 else 1e-12
        torch.testing.assert_close(weight, right[key], rtol=0, atol=tolerance)


def assert_alike(names: Sequence[str], device_name: str = "cpu") -> None:
    """Both ways of a delay on ranks end alike, and where the equations end."""
    [shape] = {(SETTINGS[name].data, SETTINGS[name].tensor) for name in names}
    by_rank = sent(as_rank, 2 * shape[0] * shape[1], names, device_name, timeout=300)
    for name, *trained in zip(names, *by_rank, strict=True):
        case = Case(MICROBATCHES, SETTINGS[name].optimizer, error_feedback=1.0)
        with muon_without_bf16():
            reference, _ = expected(case, 2, torch.float64)
        assert {key for ours, _ in trained for key in ours} == set(reference)
        for ours, emulated in trained:
            assert_close(ours, emulated)
            if name not in OWN_EQUATIONS:
                assert_close(ours, reference)
