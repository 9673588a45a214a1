"""What a fake GPU counted of an update (tests/fake_cuda), beside what a real one does."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from bench.gpu.device import GPUSetting, Row, prepare
from bench.steps import ours, resolved, words_of_scale

EF = ("pipeline=pipedream_2bw", "correction=error_feedback", "compile=false")


class Recorded(NamedTuple):
    """The peak in GB and the kernels of the second update of `in_two` on a fake GPU."""

    peak: float
    launches: int


RECORDED: Mapping[str, Recorded] = {
    "135m": Recorded(33.26, 7_100),
    "360m": Recorded(71.29, 7_693),
    "2b": Recorded(55.81, 14_716),
}
"""Of AdamW with Error Feedback, by scale. The model is whole and its microbatches are as large as
the scale's, but an update has two of them. Without the delay the fake GPU has 32.5 GB at 135m, and
an H100 had 32.6 (bench/README.md)."""


def in_two(scale: str, *words: str) -> list[str]:
    """The words of a scale with two of its microbatches in an update."""
    config = resolved(words_of_scale(scale, *words, "device=cpu"))
    rows = config["batch_size"] // config["pipeline"]["num_microbatches"]
    own = f"batch_size={2 * rows}", "pipeline.num_microbatches=2"
    return words_of_scale(scale, *words, *own, *EF)


def beside(setting: GPUSetting) -> Iterator[Row]:
    """Yields the peak and the launches of an update, and those that were recorded of a fake GPU."""
    words = in_two(setting.scale, f"device={setting.device}", *setting.more)
    ready = prepare(partial(ours, words), setting.device)
    known = None if setting.more else RECORDED.get(setting.scale)
    what = ", ".join((setting.scale, *(setting.more or ["AdamW"])))
    yield {
        "name": f"{what}, delay + EF, eager, two microbatches",
        "peak": ready.peak,
        "launches": ready.launches,
        "fake_peak": known and 1e9 * known.peak,
        "fake_launches": known and known.launches,
    }
