"""Loops of libraries, not ours, by the blocks of docs/trainers.md; beside a loop by hand."""

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

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
from tests.support.delayed import ADAMW, Loop
from tests.support.gangs import Send, sent
from tests.support.markdown import ROOT, blocks

pytest.importorskip("accelerate")
NUM, BATCH = 6, 4


def block(contains: str) -> dict[str, Any]:
    """The names that a block of the page defines."""
    texts = [b.text for b in blocks(ROOT / "docs" / "trainers.md") if b.language == "python"]
    [text] = [text for text in texts if contains in text]
    names: dict[str, Any] = {}
    exec(text, names)
    return names


class Tiny(nn.Module):
    """Linear regression that returns its loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 3))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": ((x @ self.weight + self.bias - labels) ** 2).mean()}


def examples() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(NUM * BATCH, 4, generator=generator)
    return [{"x": row[:3], "labels": row[3]} for row in drawn]


def batch(t: int) -> dict[str, Tensor]:
    rows = examples()[t * BATCH : (t + 1) * BATCH]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """As transformers divides weights: biases do not decay."""
    return [
        {"params": [model.weight], "weight_decay": 0.3},
        {"params": [model.bias], "weight_decay": 0.0},
    ]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups(model), lr=0.1, betas=(0.8, 0.9), eps=1e-6)


def by_hand(delay: int) -> list[list[Tensor]]:
    """W(1) … W(NUM) with a rate that falls linearly, betas, decay and a clip."""
    model = Tiny()
    optimizer = DelayedOptimizer(adamw(model), delay)
    versions = []
    for t in range(NUM):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * ((NUM - t) / NUM)
        optimizer.zero_grad()
        model(**batch(t))["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        with optimizer.newest():
            versions.append([w.detach().clone() for w in model.parameters()])
    return versions


def test_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    own = Tiny()
    delayed = DelayedOptimizer(adamw(own))
    fall = torch.optim.lr_scheduler.LambdaLR(delayed, lambda t: (NUM - t) / NUM)
    model, optimizer, scheduler = accelerator.prepare(own, delayed, fall)
    for t in range(NUM):
        optimizer.zero_grad()
        accelerator.backward(model(**batch(t))["loss"])
        accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
    optimizer.eval()
    assert all(map(torch.equal, own.parameters(), by_hand(1)[-1]))


def hugging_face(folder: Path, delay: int = 1) -> Any:
    from transformers import TrainingArguments

    class InOrder(block("class DelayedTrainer")["DelayedTrainer"]):  # type: ignore[misc]
        def _get_train_sampler(self, *_: object) -> torch.utils.data.Sampler:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    InOrder.delay = delay
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=NUM * BATCH,
        num_train_epochs=1,
        learning_rate=0.1,
        optim="adamw_torch",
        adam_beta1=0.8,
        adam_beta2=0.9,
        adam_epsilon=1e-6,
        weight_decay=0.3,
        max_grad_norm=0.5,
        lr_scheduler_type="linear",
        report_to=[],
        use_cpu=True,
        save_steps=4,
        logging_steps=1,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=NUM,
        disable_tqdm=True,
    )
    return InOrder(Tiny(), arguments, train_dataset=examples(), eval_dataset=examples())


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_the_trainer_of_transformers(delay: int, tmp_path: Path) -> None:
    """All arguments count; a checkpoint has the newest weights, and resumes."""
    right = by_hand(delay)
    trainer = hugging_face(tmp_path, delay)
    for resumes in (False, True):
        trainer = hugging_face(tmp_path, delay)
        trainer.train(resume_from_checkpoint=resumes)
        trainer.save_model(str(tmp_path / "last"))
        for folder, version in (("checkpoint-4", 3), ("last", NUM - 1)):
            saved = load(tmp_path / folder)
            pairs = zip((saved["weight"], saved["bias"]), right[version], strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), (folder, resumes)
        if not resumes:
            shutil.rmtree(tmp_path / f"checkpoint-{NUM}")


def load(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_a_training_of_transformers_is_recorded(tmp_path: Path) -> None:
    """One row per step, also when it goes on from a checkpoint."""
    from transformers import TrainerCallback

    class Stops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
            control.should_training_stop = state.global_step == 4

    words = {"model": "m", "data": "d", "optimizer": "adamw", "seed": 0}
    words |= {"batch_size": BATCH, "seq_len": 1, "num_updates": NUM}
    for stops in (True, False):
        trainer = hugging_face(tmp_path / "trainer")
        trainer.add_callback(Stops() if stops else TrainerCallback())
        with ExitStack() as stack:
            make = block("class Recording")["Recording"]
            trainer.add_callback(make(stack, str(tmp_path / "results"), words))
            trainer.train(resume_from_checkpoint=not stops)
        assert bool(list(tmp_path.glob("results/trials/*/result.json"))) != stops
    [metrics] = tmp_path.glob("results/trials/*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["update"] for row in rows] == [*range(NUM)]
    model, right = Tiny(), by_hand(1)
    for t, row in enumerate(rows):
        if t > 1:  # batch t reads W(t − 1)
            put(model, right[t - 2])
        assert row["train_loss"] == pytest.approx(model(**batch(t))["loss"].item(), abs=1e-6)
    put(model, right[-1])
    every = {name: torch.stack([e[name] for e in examples()]) for name in ("x", "labels")}
    assert rows[-1]["val_loss"] == pytest.approx(model(**every)["loss"].item(), abs=1e-6)


def put(model: nn.Module, weights: list[Tensor]) -> None:
    with torch.no_grad():
        for weight, value in zip((model.weight, model.bias), weights, strict=True):
            weight.copy_(value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("delay", [0, 1, 2])
def test_lightning(delay: int, tmp_path: Path) -> None:
    """It validates and saves the newest weights, and resumes."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.seen = Tiny(), dict[int, list[Tensor]]()

        def training_step(self, *_: object) -> Tensor:
            """Of its own batch: within an epoch lightning resumes with the first batch again."""
            loss: Tensor = self.model(**batch(self.global_step))["loss"]
            return loss

        def validation_step(self, *_: object) -> None:
            self.seen[self.global_step] = [w.detach().clone() for w in self.model.parameters()]

        def configure_optimizers(self) -> Any:
            optimizer = DelayedOptimizer(adamw(self.model), delay)
            fall = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: (NUM - t) / NUM)
            return [optimizer], [{"scheduler": fall, "interval": "step"}]

    loader = partial(torch.utils.data.DataLoader, examples(), BATCH)

    def fit(folder: Path, alone: bool, resumed: Path | None = None) -> Module:
        saving = lightning.callbacks.ModelCheckpoint(
            folder, filename="{step}", every_n_train_steps=4, save_top_k=-1, save_weights_only=alone
        )
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            val_check_interval=2,
            gradient_clip_val=0.5,
            callbacks=[block("class Newest")["Newest"](), saving],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module = Module()
        trainer.fit(module, loader(), loader(), ckpt_path=resumed, weights_only=False)
        assert all(map(torch.equal, module.model.parameters(), right[-1]))
        return module

    right = by_hand(delay)
    for alone in (False, True):
        module = fit(tmp_path / str(alone), alone)
        for step in (2, 4, 6):
            assert all(map(torch.equal, module.seen[step], right[step - 1])), step
        checkpoint = torch.load(tmp_path / str(alone) / "step=4.ckpt", weights_only=False)
        assert all(map(torch.equal, checkpoint["state_dict"].values(), right[3])), alone
    fit(tmp_path, False, tmp_path / "False" / "step=4.ckpt")


# Sharded weights, also beside plain ones: their content is what the loop's next forward reads.

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


def as_rank(store: dist.Store, heartbeat: Heartbeat, send: Send, num: int) -> None:
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


NUM_OF_SHARDED = 6


def test_two_ranks_equal_one_process() -> None:
    """DDP to the bit: halves are averaged as two microbatches are. FSDP2 sums a norm by shards."""
    messages, _ = sent(as_rank, 2, NUM_OF_SHARDED, timeout=600)
    assert len(messages) == 8
    for name, keep, delay, what, weights in messages:
        loop = Loop(ADAMW, keep=keep, delay=delay)
        loop.scheduler.lr_lambdas = [lambda _: 1.0] * 3
        for group in loop.delayed.param_groups:
            group["lr"] = group["initial_lr"]
        loop.run(range(NUM_OF_SHARDED), microbatches=2, clip_norm=0.5)
        loop.delayed.finish()
        tolerance = 0.0 if name == "ddp" else 1e-12
        for ours, theirs in zip(weights, loop.weights(), strict=True):
            assert (ours - theirs).abs().max() <= tolerance, (name, keep, delay, what)
