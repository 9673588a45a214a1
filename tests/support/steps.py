"""Training steps to time: pipegap's, and the same step in plain torch with transformers' model."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from pipegap.sweeps.request.schema import scale_file
from pipegap.trainer.base.build import build
from pipegap.trainer.base.resources import reproducible
from pipegap.trainer.config.compose import compose
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.models.llama import Llama
from pipegap.trainer.parts import Parts, build_emulated
from tests.support.small_sweep import later_wins

UPDATES = 100_000
"""More than any benchmark makes: the schedule has to know how many will come."""
DIFFERENT = 4
"""Batches that take turns."""
DENSE = (
    *("model=nano", "model.num_layers=1", "model.hidden_size=16", "model.intermediate_size=24"),
    *("model.vocab_size=30", "batch_size=4", "seq_len=8"),
)
"""A model whose update takes milliseconds."""


class RandomTokens:
    """Batches of random tokens [batch_size, seq_len + 1]: time does not depend on what they say."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        shape = (config["batch_size"], config["seq_len"] + 1)
        draw = torch.Generator().manual_seed(0)
        size = config["model"]["vocab_size"]
        self._batches = [torch.randint(0, size, shape, generator=draw) for _ in range(DIFFERENT)]

    def __getitem__(self, batch: int) -> Tensor:
        """The batch numbered `batch`."""
        return self._batches[batch % DIFFERENT]

    def epochs(self, num_batches: int) -> float:
        """How many epochs `num_batches` batches make."""
        return num_batches / DIFFERENT


def words_of_scale(scale: str, *words: str) -> list[str]:
    """The words of a scale, then `words`; of two words with one key the later one wins."""
    return later_wins((*scale_file(scale), *words))


def resolved(words: Sequence[str]) -> dict[str, Any]:
    """The config of these words, long enough for any benchmark; of two with one key the later
    one wins."""
    return compose(later_wins([*words, f"num_updates={UPDATES}", "tokens_per_parameter=null"]))


def executor(config: Mapping[str, Any]) -> Emulated:
    """All stages in this process, as a trial has them, on random tokens."""
    parts = Parts(
        build(config["model"]),
        build(config["pipeline"], UPDATES),
        lambda t: 1.0,
        RandomTokens(config),  # type: ignore[arg-type]
        [],  # type: ignore[arg-type]
    )
    return build_emulated(config, parts, torch.device(config["device"]))


def ours(words: Sequence[str], at_once: int = 1) -> Callable[[], None]:
    """So many updates of a trial with these words: all of it but evaluation and records."""
    run, numbers = executor(resolved(words)).run, count(0, at_once)

    def update() -> None:
        t = next(numbers)
        run(t, t + at_once, lambda update: None)

    return _reproducible(update, resolved(words))


def theirs(words: Sequence[str], at_once: int = 1) -> Callable[[], None]:
    """So many updates in a plain loop: transformers' Llama, torch's AdamW, accumulation and clip.

    Where the words choose bf16, torch's autocast computes in it and leaves the weights in fp32, as
    a trial does. `compile` compiles the model, `optimizer.fused` fuses the optimizer.
    """
    from transformers import LlamaConfig, LlamaForCausalLM  # imported late: it costs seconds

    config = resolved(words)
    recipe: Llama = build(config["model"])
    device = torch.device(config["device"])
    model: Any = LlamaForCausalLM(LlamaConfig(**recipe.pretrained({}).config))
    model = model.to(device)
    chosen = config["optimizer"]
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=chosen["lr"],
        betas=(chosen["momentum"], chosen["variance_decay"]),
        weight_decay=chosen["weight_decay"],
        fused=chosen["fused"],
    )
    run = torch.compile(model) if config["compile"] else model
    narrow = torch.autocast(device.type, torch.bfloat16, enabled=config["dtype"] == "bfloat16")
    microbatches = config["pipeline"]["num_microbatches"]
    batches, numbers = RandomTokens(config), count()

    def update() -> None:
        for _ in range(at_once):
            for rows in batches[next(numbers)].to(device).chunk(microbatches):
                with narrow:
                    logits = run(input_ids=rows[:, :-1], use_cache=False).logits
                    loss = F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
                (loss / microbatches).backward()
            clip_grad_norm_(model.parameters(), config["clip_norm"])
            optimizer.step()
            optimizer.zero_grad()

    return _reproducible(update, config)


def _reproducible(update: Callable[[], None], config: Mapping[str, Any]) -> Callable[[], None]:
    """The update with the config's `deterministic`, whatever other steps ran in between."""

    def run() -> None:
        with reproducible(0, torch.get_num_threads(), config["deterministic"]):
            update()

    return run
