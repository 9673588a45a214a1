"""The toy model on torch.distributed.pipelining: ranks that train cases by `Schedule2BW`."""

import pickle
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from pipegap.trainer.base.resources import rank_device
from pipegap.trainer.executors.channel import POSTED_EARLY
from pipegap.trainer.optimizers.routing import Chained, kinds
from pipegap.trainer.ranks.groups import Heartbeat, joined
from pipegap.trainer.torch_pipelining import Schedule2BW
from tests.support import choices, every_correction, toy
from tests.support.gangs import Send, sent
from tests.support.gpu_rules import lazy_kernels, nccl_like


def sgd(stage: nn.Module) -> Optimizer:
    return torch.optim.SGD(stage.parameters(), lr=0.3, momentum=0.9)


def adamw(stage: nn.Module) -> Optimizer:
    # On a GPU torch would step lists, which may not have DTensors beside plain tensors.
    return torch.optim.AdamW(stage.parameters(), lr=0.02, foreach=False)


def torch_muon(stage: nn.Module) -> Optimizer:
    matrices = [w for w in stage.parameters() if w.ndim == 2]
    rest = [w for w in stage.parameters() if w.ndim != 2]
    parts: list[Optimizer] = [torch.optim.Muon(matrices, lr=0.02)]
    return Chained([*parts, torch.optim.AdamW(rest, lr=0.02)] if rest else parts)


def newton_schulz(
    matrix: Tensor, coefficients: Sequence[float], num_steps: int, eps: float
) -> Tensor:
    """Muon's iteration without torch's cast to bf16: sums over ranks may be made in any order."""
    a, b, c = coefficients
    x = matrix / matrix.norm().clamp(min=eps)
    for _ in range(num_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class DistMuon(Optimizer):
    """Muon for DTensors: momentum is cut as the weight; of each matrix one rank has the whole, and
    sends the others its orthogonal factor."""

    def __init__(self, matrices: Sequence[Tensor], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """By the gradients of all matrices."""
        for group in self.param_groups:
            for i, weight in enumerate(group["params"]):
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                momentum.lerp_(weight.grad, 0.05)
                weight.add_(self._orthogonal(momentum, i), alpha=-group["lr"])

    def _orthogonal(self, momentum: Tensor, i: int) -> Tensor:
        iterate = partial(newton_schulz, coefficients=(3.4445, -4.775, 2.0315), num_steps=5)
        if not isinstance(momentum, DTensor):
            return iterate(momentum, eps=1e-7)
        mesh, made = momentum.device_mesh, momentum.full_tensor()
        owner = [i % size for size in mesh.shape]
        made = iterate(made, eps=1e-7) if [*mesh.get_coordinate()] == owner else made
        for dim, rank in enumerate(owner):
            dist.broadcast(made, group=mesh.get_group(dim), group_src=rank)
        return distribute_tensor(made, mesh, momentum.placements, src_data_rank=None)


def dist_muon(stage: nn.Module) -> Optimizer:
    matrices = [w for w in stage.parameters() if w.ndim == 2]
    rest = [w for w in stage.parameters() if w.ndim != 2]
    return Chained([DistMuon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=0.02)])


def of_torch(name: str, stage: nn.Module) -> Optimizer:
    optimizer: Optimizer = getattr(torch.optim, name)(stage.parameters(), lr=0.01)
    return optimizer


def ours(name: str, stage: nn.Module) -> Optimizer:
    kind = kinds(stage)
    weights = [(kind[n], w) for n, w in stage.named_parameters()]
    optimizer: Optimizer = choices.optimizer_maker(name, lr=0.02)(weights)
    return optimizer


OF_TORCH = sorted(
    name
    for name, made in vars(torch.optim).items()
    if isinstance(made, type) and issubclass(made, Optimizer) and made is not Optimizer
    # LBFGS needs a closure, SparseAdam sparse gradients, and Muon is beside AdamW in `torch_muon`.
    if name not in ("LBFGS", "SparseAdam", "Muon")
)
OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": sgd,
    "adamw": adamw,
    "torch_muon": torch_muon,
    "dist_muon": dist_muon,
    **{f"torch_{name}": partial(of_torch, name) for name in OF_TORCH},
    **{f"our_{name}": partial(ours, name) for name in choices.OPTIMIZERS},
}


T = 8
LOOSE, TIGHT = 1e9, 0.5
"""A clip that never acts, and one that always does."""
Trained = tuple[dict[str, Tensor], list[float]]
"""Weights of the model in the end; the mean loss of each batch."""


@dataclass(frozen=True)
class Case:
    """What is trained: `drains` names what is done before a batch, by its number."""

    microbatches: int
    optimizer: str = "adamw"
    error_feedback: float = 0.0
    clip_norm: float = TIGHT
    drains: Mapping[int, str] = field(default_factory=dict)
    correction: str | None = None
    synchronous_start: int = 0
    slack: bool = False
    trace_to: Path | None = None
    shares: str = ""
    """Whether "stages" tie the head to the embedding, or "blocks" of the first stage a matrix."""
    device: str = "cpu"


def modules(num_stages: int, dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    """The toy's six parts, by the same names for any number of stages up to six."""
    [whole] = toy.modules(1, dtype)
    parts = list(whole.named_children())
    cuts = [6 * i // num_stages for i in range(num_stages + 1)]
    return [nn.Sequential(OrderedDict(parts[a:b])) for a, b in pairwise(cuts)]


def modules_of(case: Case, num_stages: int, dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    """Blocks share a matrix as one object; stages cannot, and share its value."""
    stages = modules(num_stages, dtype)
    if case.shares == "blocks":
        stages[0].get_submodule("2.up").weight = stages[0].get_parameter("1.up.weight")
    return stages


EMBEDDING, HEAD = "0.weight", "5.weight"
"""Names of the tied weights, on the first and on the last stage."""


def tokens(t: int) -> Tensor:
    """24 rows: they make 2, 3, 4, 6 or 8 microbatches."""
    return torch.cat([toy.batch(2 * t), toy.batch(2 * t + 1)])


def batch(t: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    rows = tokens(t)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Training:
    """The loop of a user: one stage of the case on this rank."""

    def __init__(self, case: Case, rank: int, num_stages: int) -> None:
        self.case, self.rank, self.num_stages = case, rank, num_stages
        self.device = rank_device(case.device, rank, num_stages)
        self.module = modules_of(case, num_stages)[rank].to(self.device)
        self.optimizer = OPTIMIZERS[case.optimizer](self.module)
        self.scheduler = LambdaLR(self.optimizer, toy.lr_factor)
        self.schedule = self.new_schedule()

    def new_schedule(self) -> Schedule2BW:
        case = self.case
        correction: dict[str, Any] = {"error_feedback": case.error_feedback}
        if case.correction:
            node = every_correction.settings(case.correction)
            correction = {"correction": every_correction.located(node), "num_updates": T}
        return Schedule2BW(
            PipelineStage(self.module, self.rank, self.num_stages, self.device),
            case.microbatches,
            toy.loss,
            update=self.update,
            synchronous_start=case.synchronous_start,
            slack=case.slack,
            trace=case.trace_to is not None,
            tied=self._tied(),
            **correction,
        )

    def _tied(self) -> list[str]:
        ends = {0: EMBEDDING, self.num_stages - 1: HEAD} if self.case.shares == "stages" else {}
        return [name for rank, name in ends.items() if rank == self.rank]

    def update(self) -> None:
        self.schedule.clip_grad_norm_(self.case.clip_norm)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def step(self, t: int, call: str = "step") -> float:
        """The mean loss of the batch, on the last rank."""
        x, y = (part.to(self.device) for part in batch(t))
        losses: list[Tensor] = []
        inputs = (x,) if self.rank == 0 else ()
        last = {"target": y, "losses": losses} if self.rank == self.num_stages - 1 else {}
        getattr(self.schedule, call)(*inputs, **last)
        return float(sum(loss.detach() for loss in losses)) / self.case.microbatches

    def save_and_load(self) -> None:
        """Into a new schedule, over a module and an optimizer that forgot everything."""
        parts = (self.module, self.optimizer, self.scheduler, self.schedule)
        saved = pickle.dumps([part.state_dict() for part in parts])
        fresh = Training(self.case, self.rank, self.num_stages)
        with torch.no_grad():
            for weight in fresh.module.parameters():
                weight.zero_()
        self.module, self.optimizer = fresh.module, fresh.optimizer
        self.scheduler, self.schedule = fresh.scheduler, fresh.schedule
        self.schedule.update = self.update
        parts = (self.module, self.optimizer, self.scheduler, self.schedule)
        for part, state in reversed([*zip(parts, pickle.loads(saved), strict=True)]):
            part.load_state_dict(state)

    def save_and_load_parts(self) -> None:
        """Like `save_and_load`, by torch.distributed.checkpoint but for optimizer and scheduler."""
        folder = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder)
        dcp.save(
            {"model": self.module.state_dict(), "schedule": self.schedule}, checkpoint_id=folder[0]
        )
        with patch.object(Schedule2BW, "load_state_dict"):
            self.save_and_load()
        with torch.no_grad():
            for weight in self.module.parameters():
                weight.zero_()
        dcp.load(
            {"model": self.module.state_dict(), "schedule": self.schedule}, checkpoint_id=folder[0]
        )
        dist.barrier()
        shutil.rmtree(folder[0], ignore_errors=True)

    def run(self) -> Trained:
        means = []
        for t in range(T):
            match self.case.drains.get(t):
                case "drain":
                    with self.schedule.drained():
                        pass
                case "evaluate":
                    with self.schedule.drained(), torch.no_grad():
                        self.step(0, "eval")
                case "save":
                    with self.schedule.drained():
                        self.save_and_load()
                case "save in parts":
                    with self.schedule.drained():
                        self.save_and_load_parts()
            means.append(self.step(t))
        with self.schedule.drained() as newest:
            if self.case.trace_to is not None:
                self.schedule.write_trace(self.case.trace_to)
            return {n: w.detach().cpu().clone() for n, w in newest.named_parameters()}, means


def as_rank(
    store: dist.Store, heartbeat: Heartbeat, send: Send, num_stages: int, cases: Sequence[Case]
) -> None:
    torch.set_num_threads(1)
    device = rank_device(cases[0].device, heartbeat.rank, num_stages)
    with joined(store, heartbeat.rank, num_stages, 1, device, heartbeat, 60):
        for case in cases:
            send(Training(case, heartbeat.rank, num_stages).run())


def as_nccl_rank(store: dist.Store, heartbeat: Heartbeat, *rest: Any, **late: Any) -> None:
    """Like `as_rank`, under the rules of NCCL about communicators and of CUDA about kernels.

    `late` says when they are loaded, as `lazy_kernels` takes it.
    """
    with (
        patch.dict(POSTED_EARLY, cpu=POSTED_EARLY["cuda"]),
        nccl_like(dist.PrefixStore("nccl", store), heartbeat.rank),
        lazy_kernels(**late),
    ):
        as_rank(store, heartbeat, *rest)


def on_ranks(
    num_stages: int, cases: Sequence[Case], program: Callable[..., None] = as_rank
) -> list[Trained]:
    """What the ranks of one gang make of each case, one after the other."""
    # Ranks that share a GPU take turns, and free their communicators one after the other.
    timeout = (60 if cases[0].device == "cpu" else 240) + 5 * len(cases)
    by_rank = sent(program, num_stages, num_stages, cases, timeout=timeout)
    return [
        ({name: w for weights, _ in ranks for name, w in weights.items()}, ranks[-1][1])
        for ranks in zip(*by_rank, strict=True)
    ]
