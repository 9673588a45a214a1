"""NeMo Automodel's pipeline on CPUs, a rank per stage, by `Schedule2BW`: a program.

    python -m tests.support.automodel FOLDER

It writes the largest differences of the last rank, of losses and weights, from `DelayedOptimizer`
in one process to FOLDER/automodel.json.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from nemo_automodel.components.distributed.pipelining import functional
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from pipegap import Schedule2BW
from pipegap.trainer.delayed import DelayedOptimizer
from tests.support.processes import on_ranks

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
}
BATCH, LENGTH, MICRO, UPDATES = 8, 8, 2, 6


def loss_of(output: Any, target: Tensor) -> Tensor:
    logits = getattr(output, "logits", output)  # of the whole model, or of the last stage
    return cross_entropy(logits.flatten(0, 1), target.flatten())


def main(folder: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_attention_heads=2, tie_word_embeddings=False, use_cache=False)
    model = LlamaForCausalLM(config)
    whole = copy.deepcopy(model)
    batches = torch.randint(32, (UPDATES, BATCH, LENGTH + 1))

    find = functional.get_schedule_class
    functional.get_schedule_class = lambda name: Schedule2BW if name == "2BW" else find(name)
    schedule, [part], _, is_last, _ = functional.pipeline_model(
        model,
        init_device_mesh("cpu", (2,), mesh_dim_names=("pp",)),
        None,
        pp_axis_name="pp",
        dp_axis_names=(),
        layers_per_stage=None,
        pipeline_parallel_schedule_csv=None,
        pipeline_parallel_schedule="2BW",
        microbatch_size=MICRO,
        local_batch_size=BATCH,
        device=torch.device("cpu"),
        loss_fn=loss_of,
        scale_grads=True,
    )
    optimizer = torch.optim.AdamW(part.parameters(), lr=0.01)

    def update() -> None:
        schedule.clip_grad_norm_(1.0)
        optimizer.step()

    schedule.update = update
    losses: list[Tensor] = []
    for batch in batches:
        of_batch: list[Tensor] = []
        if is_last:
            schedule.step(target=batch[:, 1:], losses=of_batch)
            losses.append(torch.stack(of_batch).mean())
        else:
            schedule.step(batch[:, :-1])
    with schedule.drained():
        right, newest = trained(whole, batches)
        gaps = [(w - newest[name]).abs().max().item() for name, w in part.named_parameters()]
    if is_last:
        of_losses = (torch.stack(losses) - right).abs().max().item()
        found = {"losses": of_losses, "weights": max(gaps), "num_weights": len(gaps)}
        (folder / "automodel.json").write_text(json.dumps(found))


def trained(model: Any, batches: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses and the weights of the same training by `DelayedOptimizer`."""
    optimizer = DelayedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01), 1, 1.0)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        parts = [loss_of(model(x[:, :-1]), x[:, 1:]) for x in batch.split(MICRO)]
        losses.append(torch.stack(parts).mean())
        losses[-1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with optimizer.newest():
        return torch.stack(losses).detach(), {n: w.clone() for n, w in model.named_parameters()}


if __name__ == "__main__":
    on_ranks(2, main, Path(sys.argv[1]))
