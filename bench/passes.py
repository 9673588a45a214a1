"""What an update consists of: calls of torch, and passes over memory. Nothing is timed.

    python -m bench.passes [model=tiny] [KEY=VALUE ...]

One update in one process, four microbatches of one short sequence, counted by the operations that
torch dispatches: a call on a list of tensors counts once, views do not count. A pass reads or
writes as many bytes as the weights have in fp32.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.base.build import build
from trainer.config.compose import compose
from trainer.data.batches import Batches, Windows
from trainer.data.tokens import Tokens
from trainer.executors.emulated import Emulated
from trainer.parts import Parts, build_emulated
from trainer.stages import update
from trainer.stages.stage import Stage

ARMS = {
    "sync": ["pipeline=sync"],
    "delay": ["pipeline=pipedream_2bw"],
    "delay + EF": ["pipeline=pipedream_2bw", "correction=error_feedback"],
}
LENGTH, MICROBATCHES = 32, 4
NUM_BEFORE = 3
"""Updates before the one that is counted: then there are states, and something to correct."""
WORDS = [
    f"seq_len={LENGTH}",
    f"batch_size={MICROBATCHES}",
    f"pipeline.num_microbatches={MICROBATCHES}",
]
REST, UPDATE = "forward and backward", "versions and correction"
PARTS: Sequence[tuple[Any, str, str]] = (
    (Stage, "backward_weights", "sum over microbatches"),
    (Emulated, "_reduce", "mean, norm and clip"),
    (Emulated, "_update", UPDATE),
    (update, "step", "optimizer"),
)
"""Owner and function → the part of an update that it is; a part within another counts apart."""
NOT_READ = {"copy_", "_foreach_copy_", "zero_", "fill_"}
"""Operations that overwrite their first argument."""


class Counts(TorchDispatchMode):
    """Counts, while it is entered, what is dispatched in each part of an update."""

    def __init__(self) -> None:
        super().__init__()
        self.part = REST
        self.calls: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        self.made: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs and counts `func`."""
        given, schema = dict(kwargs or {}), func._schema
        result = func(*args, **given)
        if any(of.alias_info and not of.alias_info.is_write for of in schema.returns):
            return result  # a view
        given.update(zip((of.name for of in schema.arguments), args, strict=False))
        self.calls[self.part] += 1
        for of in schema.arguments:
            size = _bytes(given.get(of.name))
            is_written = of.alias_info is not None and of.alias_info.is_write
            is_read = not is_written or func.overloadpacket.__name__ not in NOT_READ
            self.written[self.part] += size * is_written
            self.read[self.part] += size * is_read
        made = 0 if any(of.alias_info for of in schema.returns) else _bytes(result)
        self.written[self.part] += made
        self.made[self.part] += made
        return result

    @contextmanager
    def labelled(self, owner: Any, method: str, part: str) -> Iterator[None]:
        """What `owner.method` does counts as `part` while the context lasts."""
        plain: Callable[..., Any] = getattr(owner, method)

        def counted(*args: Any, **kwargs: Any) -> Any:
            outer, self.part = self.part, part
            try:
                return plain(*args, **kwargs)
            finally:
                self.part = outer

        with patch.object(owner, method, counted):
            yield


def _bytes(of: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(of) if isinstance(leaf, Tensor))


def executor(words: Sequence[str]) -> Emulated:
    """The executor of a trial on random tokens."""
    config = compose(list(words))
    model = build(config["model"])
    drawn = np.random.default_rng(0).integers(0, model.vocab_size, 10_000, dtype=np.uint16)
    tokens = Tokens([drawn])
    batches = Batches(tokens, seed=0, batch_size=config["batch_size"], seq_len=LENGTH)
    schedule = build(config["pipeline"], 100)
    parts = Parts(model, schedule, lambda t: 1.0, batches, Windows(tokens, LENGTH))
    return build_emulated(config, parts, torch.device("cpu"))


def counted(words: Sequence[str]) -> tuple[Counts, int]:
    """The counts of an update, after those that make states; and the bytes of the weights."""
    counts = Counts()
    with ExitStack() as stack:
        for of in PARTS:
            stack.enter_context(counts.labelled(*of))
        trained = executor(words)
        trained.run(0, NUM_BEFORE, lambda update: None)
        with counts:
            trained.run(NUM_BEFORE, NUM_BEFORE + 1, lambda update: None)
    master = (weight for stage in trained.stages for weight in stage.versions.master)
    return counts, sum(weight.nbytes for weight in master)


def main() -> None:
    """Prints a table."""
    torch.set_num_threads(1)
    print("| | part of an update | calls | passes that read | that write | of it new tensors |")
    print("| --- | --- | --- | --- | --- | --- |")
    for arm, of_arm in ARMS.items():
        counts, size = counted(["model=tiny", *WORDS, *of_arm, *sys.argv[1:]])
        for part in (REST, *(name for _, _, name in PARTS)):
            passes = [of[part] / size for of in (counts.read, counts.written, counts.made)]
            cells = " | ".join(f"{of:.1f}" for of in passes)
            print(f"| {arm} | {part} | {counts.calls[part]} | {cells} |")


if __name__ == "__main__":
    main()
