"""A trial that takes a second: a small corpus and a small config in a folder of the test's own."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipegap.trainer.config.compose import compose
from tests.support.documents import prepared

SMALL = [
    "model.hidden_size=24",
    "model.num_layers=2",
    "model.intermediate_size=32",
    "batch_size=4",
    "seq_len=16",
    "num_updates=12",
    "eval_every=4",
    "checkpoint_every=5",
    "optimizer.lr=0.01",
]


def corpus(folder: Path) -> Path:
    """About 30 KB of text, prepared as bytes."""
    texts = [f"{i} times {i + 1} is {i * (i + 1)}, and so on and on. " * 3 for i in range(300)]
    prepared(folder / "corpus", texts, validation_share=0.05)
    return folder / "corpus"


def later_wins(words: Iterable[str]) -> list[str]:
    """Of words with one key the last one."""
    return [*{word.partition("=")[0]: word for word in words}.values()]


def overrides(folder: Path, *more: str) -> list[str]:
    """Later words win."""
    if not (folder / "corpus").exists():
        corpus(folder)
    return later_wins(
        [f"data.path={folder / 'corpus'}", f"results={folder / 'results'}", *SMALL, *more]
    )


def config(folder: Path, *more: str) -> dict[str, Any]:
    """The resolved config of that trial."""
    return compose(overrides(folder, *more))
