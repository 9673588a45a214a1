"""Loops of libraries, not ours: accelerate, and the Trainer of transformers."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trainer.delayed import DelayedOptimizer

pytest.importorskip("accelerate")
NUM, BATCH = 6, 4


class Tiny(nn.Module):
    """Linear regression that returns its loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 3))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": ((x @ self.weight - labels) ** 2).mean()}


def examples() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(NUM * BATCH, 4, generator=generator)
    return [{"x": row[:3], "labels": row[3]} for row in drawn]


def wrapped(model: nn.Module) -> DelayedOptimizer:
    return DelayedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.1))


def batch(t: int) -> dict[str, Tensor]:
    rows = examples()[t * BATCH : (t + 1) * BATCH]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def by_hand() -> Tensor:
    """W(NUM) of the plain loop, without clip and with a constant learning rate."""
    model = Tiny()
    optimizer = wrapped(model)
    for t in range(NUM):
        optimizer.zero_grad()
        model(**batch(t))["loss"].backward()
        optimizer.step()
    optimizer.eval()
    return model.weight.detach().clone()


def test_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(own := Tiny(), wrapped(own))
    for t in range(NUM):
        optimizer.zero_grad()
        accelerator.backward(model(**batch(t))["loss"])
        optimizer.step()
    optimizer.eval()
    assert torch.equal(own.weight, by_hand())


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: object) -> torch.utils.data.Sampler:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    def arguments(**more: object) -> TrainingArguments:
        return TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            max_grad_norm=0,
            lr_scheduler_type="constant",
            report_to=[],
            use_cpu=True,
            save_steps=4,
            disable_tqdm=True,
            **more,
        )

    def trained(resume: bool) -> Tensor:
        model = Tiny()
        optimizer = wrapped(model)
        trainer = InOrder(
            model,
            arguments(),
            train_dataset=examples(),
            eval_dataset=examples(),
            optimizers=(optimizer, None),
        )
        trainer.train(resume_from_checkpoint=resume)
        optimizer.eval()
        return model.weight.detach().clone()

    assert torch.equal(trained(resume=False), by_hand())
    shutil.rmtree(tmp_path / f"checkpoint-{NUM}")
    assert torch.equal(trained(resume=True), by_hand()), "from the checkpoint after 4 updates"
