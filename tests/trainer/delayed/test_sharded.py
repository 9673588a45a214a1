"""Sharded weights, also beside plain ones: their content is what the loop's next forward reads."""

import shutil
import tempfile
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.ranks.groups import Heartbeat
from tests.support import toy
from tests.support.delayed import ADAMW
from tests.support.gangs import sent
from tests.support.own_loop import Loop

X = torch.linspace(-1, 1, 8).view(4, 2)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))


def sharded() -> nn.Module:
    """FSDP2; the last layer stays whole in its root."""
    model, mesh = module(), init_device_mesh("cpu", (1,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def mixed() -> nn.Module:
    """One layer's weight alone is a DTensor, as tensor parallelism makes some."""
    model, mesh = module(), init_device_mesh("cpu", (1,))
    model[0].weight = nn.Parameter(distribute_tensor(model[0].weight, mesh))
    model[0].forward = lambda x: nn.functional.linear(
        x, model[0].weight.full_tensor(), model[0].bias
    )
    return model


def trained(model: nn.Module, *, evaluates: bool) -> list[Tensor]:
    delayed = DelayedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False))
    for _ in range(5):
        if evaluates:
            with delayed.newest(), torch.no_grad():
                model(X)
        nn.functional.mse_loss(model(X), X.flip(0)).backward()
        delayed.step()
        delayed.zero_grad()
    delayed.finish()
    return whole_weights(model)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("make", [module, sharded, mixed])
@pytest.mark.parametrize("evaluates", [False, True])
def test_weights_are_trained_alike(make: Callable[[], nn.Module], evaluates: bool) -> None:
    for mine, right in zip(
        trained(make(), evaluates=evaluates), trained(module(), evaluates=False), strict=True
    ):
        assert torch.equal(mine, right)


Wrap = Callable[[nn.Module], nn.Module]


def replicated(module: nn.Module) -> nn.Module:
    """DDP, whose gradients are parts of its buckets."""
    return DistributedDataParallel(module, gradient_as_bucket_view=True)


def fsdp(module: nn.Module) -> nn.Module:
    """FSDP2; the first and the last part stay whole in its root."""
    mesh = init_device_mesh("cpu", (2,))
    for block in list(module.children())[1:-1]:
        fully_shard(block, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def fsdp1(module: nn.Module) -> nn.Module:
    """FullyShardedDataParallel, whose root keeps gathered weights after a forward alone."""
    return FSDP1(module, use_orig_params=True, device_id=torch.device("cpu"))


WRAPS: dict[str, Wrap] = {"ddp": replicated, "fsdp2": fsdp, "fsdp1": fsdp1}


def make(wrap: Wrap, keep: str, delay: int) -> tuple[nn.Module, DelayedOptimizer]:
    module = toy.modules(1)[0]
    kind = kinds(module)
    model = wrap(module)
    prefix = "_fsdp_wrapped_module." if wrap is fsdp1 else "module."
    named = [(n.removeprefix(prefix), p) for n, p in model.named_parameters()]
    return model, DelayedOptimizer(ADAMW([(kind[n], p) for n, p in named]), delay, keep=keep)  # type: ignore[arg-type]


def train(model: nn.Module, delayed: DelayedOptimizer, batches: range) -> None:
    for t in batches:
        rows = toy.batch(t).chunk(2)[dist.get_rank()]
        delayed.zero_grad()
        toy.loss(model(rows[:, :-1]), rows[:, 1:]).backward()
        clip = clip_flat if isinstance(model, FSDP1) else nn.utils.clip_grad_norm_
        clip(model.parameters(), 0.5)
        if t % 2:  # an evaluation of the weights that this batch was computed on
            evaluate(model, rows)
        delayed.step()
        with delayed.newest():
            evaluate(model, rows)


def clip_flat(weights: Iterable[nn.Parameter], max_norm: float) -> None:
    """What FSDP1's own clip does, which takes no float64."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    total = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    dist.all_reduce(total)
    for gradient in gradients:
        gradient.mul_((max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0))


@torch.no_grad()
def evaluate(model: nn.Module, rows: Tensor) -> None:
    """A forward without a backward, after which a wrapper may keep copies of weights."""
    model(rows[:, :-1])


def whole_weights(model: nn.Module) -> list[Tensor]:
    if isinstance(model, FSDP1):
        with FSDP1.summon_full_params(model, writeback=False):
            return [weight.detach().clone() for weight in model.parameters()]
    weights = (weight.detach() for weight in model.parameters())
    return [w.full_tensor() if isinstance(w, DTensor) else w.clone() for w in weights]


def as_rank(
    store: dist.Store, heartbeat: Heartbeat, send: Callable[[object], None], num: int
) -> None:
    """Sends, for each way to train, the weights after `num` batches, also of a resumed training."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=store, rank=heartbeat.rank, world_size=2, timeout=timedelta(seconds=300)
    )
    for name, wrap in WRAPS.items():
        for keep, delay in (("weights", 2), ("gradients", 1)):
            model, delayed = make(wrap, keep, delay)
            train(model, delayed, range(num // 2))
            resumed = (
                resume(model, delayed, make(wrap, keep, delay))
                if (name, keep) in (("fsdp2", "weights"), ("fsdp1", "weights"))
                else None
            )
            for what, training in {"through": (model, delayed), "resumed": resumed}.items():
                if training is not None:
                    train(*training, range(num // 2, num))
                    training[1].finish()
                    if heartbeat.rank == 0 or name != "ddp":
                        weights = whole_weights(training[0])
                    if heartbeat.rank == 0:
                        send((name, keep, delay, what, weights))
    dist.barrier()
    dist.destroy_process_group()


def resume(
    model: nn.Module, delayed: DelayedOptimizer, other: tuple[nn.Module, DelayedOptimizer]
) -> tuple[nn.Module, DelayedOptimizer]:
    """`other`, after it was saved and loaded by torch.distributed.checkpoint."""
    folder = [tempfile.mkdtemp(prefix="pipegap-dcp-") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    dcp.save(
        dict(zip(("model", "optimizer"), get_state_dict(model, delayed), strict=True)),
        checkpoint_id=Path(folder[0]),
    )
    states = dict(zip(("model", "optimizer"), get_state_dict(*other), strict=True))
    dcp.load(states, checkpoint_id=Path(folder[0]))
    set_state_dict(*other, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    dist.barrier()
    shutil.rmtree(folder[0], ignore_errors=True)
    return other


NUM = 6


def test_two_ranks_equal_one_process() -> None:
    """DDP to the bit: halves are averaged as two microbatches are. FSDP2 sums a norm by shards."""
    messages, _ = sent(as_rank, 2, NUM, timeout=600)
    assert len(messages) == 8
    for name, keep, delay, what, weights in messages:
        loop = Loop(ADAMW, keep=keep, delay=delay)
        loop.scheduler.lr_lambdas = [lambda _: 1.0] * 3
        for group in loop.delayed.param_groups:
            group["lr"] = group["initial_lr"]
        loop.run(range(NUM), microbatches=2, clip_norm=0.5)
        loop.delayed.finish()
        tolerance = 0.0 if name == "ddp" else 1e-12
        for ours, theirs in zip(weights, loop.weights(), strict=True):
            assert (ours - theirs).abs().max() <= tolerance, (name, keep, delay, what)
