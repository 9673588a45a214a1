"""The parts of an update, and what a fake GPU counted of updates at the scales."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

from tests.support.steps import resolved, words_of_scale

EF = ("pipeline=pipedream_2bw", "correction=error_feedback", "compile=false")
PARTS: Mapping[str, str] = {
    "pipegap.trainer.stages.stage.Stage.forward": "forward",
    "pipegap.trainer.stages.stage.Stage.backward_input": "backward",
    "pipegap.trainer.stages.stage.Stage.backward_weights": "sums over microbatches",
    "pipegap.trainer.executors.emulated.Emulated._reduce": "mean, norm, clip, and the one wait",
    "pipegap.trainer.executors.pipelined.Reducer._reduce": "mean, norm, clip, and the one wait",
    "pipegap.trainer.stages.stage.Stage.correct": "correction",
    "pipegap.trainer.stages.stage.corrected_update": "correction",
    "pipegap.trainer.stages.stage.step": "optimizer",
    "pipegap.trainer.stages.stage.Stage.update": "versions",
}
"""Function → what its time counts as, without that of the functions here that it calls."""
REST = "order of the calls"
LAUNCHES: Mapping[str, Mapping[str, int]] = {
    "135m": {
        "forward": 9_336,
        "backward": 17_232,
        "sums over microbatches": 119,
        "mean, norm, clip, and the one wait": 35,
        "correction": 39,
        "optimizer": 73,
        "versions": 7,
        REST: 1,
    }
}
"""Scale → part → most kernels of an update of `few_tokens` on a fake GPU. The only count that is
held: lower a number when there are fewer."""


PEAKS: Mapping[str, float] = {"135m": 33.26, "360m": 71.29, "2b": 55.81}
"""Scale → peak in GB of the second update of `in_two` on a fake GPU, of AdamW with Error Feedback.
The model is whole and its microbatches are as large as the scale's, but an update has two of them.
Without the delay the fake GPU has 32.5 GB at 135m, and an H100 had 32.6 (bench/README.md)."""

Part = Callable[[str], AbstractContextManager[None]]


@contextmanager
def told_apart(part: Part) -> Iterator[None]:
    """Enters `part(name)` around every call of a part's functions while the context lasts."""

    def within(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with part(name):
                return function(*args, **kwargs)

        return run

    with ExitStack() as stack:
        for address, name in PARTS.items():
            stack.enter_context(patch(address, within(name, resolve_name(address))))
        yield


def in_two(scale: str, *words: str) -> list[str]:
    """The words of a scale with two of its microbatches in an update."""
    config = resolved(words_of_scale(scale, *words, "device=cpu"))
    rows = config["batch_size"] // config["pipeline"]["num_microbatches"]
    own = f"batch_size={2 * rows}", "pipeline.num_microbatches=2"
    return words_of_scale(scale, *words, *own, *EF)


def few_tokens(scale: str, *words: str) -> list[str]:
    """The words of a scale with eight tokens in each of its microbatches."""
    config = resolved(words_of_scale(scale, *words, "device=cpu"))
    number = config["pipeline"]["num_microbatches"]
    return words_of_scale(scale, *words, *EF[:2], f"batch_size={number}", "seq_len=8")
