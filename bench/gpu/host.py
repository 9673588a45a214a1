"""An update beside what a fake GPU counted of it (tests/fake_cuda): its memory and launches, and
where the host's time goes, part by part, when the GPU has little to do."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from pkgutil import resolve_name
from time import perf_counter
from typing import Any, NamedTuple
from unittest.mock import patch

from bench.gpu.device import GPUSetting, Row, prepare
from bench.steps import ours, resolved, words_of_scale

EF = ("pipeline=pipedream_2bw", "correction=error_feedback", "compile=false")
PARTS: Mapping[str, str] = {
    "trainer.stages.stage.Stage.forward": "forward",
    "trainer.stages.stage.Stage.backward_input": "backward",
    "trainer.stages.stage.Stage.backward_weights": "sums over microbatches",
    "trainer.executors.emulated.Emulated._reduce": "mean, norm, clip, and the one wait",
    "trainer.executors.reduction.Reducer._reduce": "mean, norm, clip, and the one wait",
    "trainer.stages.stage.Stage.correct": "correction",
    "trainer.stages.stage.corrected_update": "correction",
    "trainer.stages.update.step": "optimizer",
    "trainer.stages.stage.Stage.update": "versions",
}
"""Function → what its time counts as, without that of the functions here that it calls."""
PASSES = ("forward", "backward")
REST = "order of the calls"
SHOWN = (*dict.fromkeys(PARTS.values()), REST)
WARM = 3
"""Updates before those that are timed."""
LAUNCHES: Mapping[str, Mapping[str, int]] = {
    "135m": {
        "forward": 9_336,
        "backward": 17_232,
        "sums over microbatches": 48,
        "mean, norm, clip, and the one wait": 36,
        "correction": 36,
        "optimizer": 23,
        "versions": 3,
        REST: 1,
    }
}
"""Scale → part → kernels of an update of `few_tokens`, as a fake GPU counted them."""


class Recorded(NamedTuple):
    """The peak in GB and the kernels of the second update of `in_two` on a fake GPU."""

    peak: float
    launches: int


RECORDED: Mapping[str, Recorded] = {
    "135m": Recorded(33.26, 6_755),
    "360m": Recorded(71.29, 7_290),
    "2b": Recorded(55.81, 10_897),
}
"""Of AdamW with Error Feedback, by scale. The model is whole and its microbatches are as large as
the scale's, but an update has two of them. Without the delay the fake GPU has 32.5 GB at 135m, and
an H100 had 32.6 (bench/README.md)."""

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


class Stopwatch:
    """The seconds of each part from now on, without those of parts within it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._parts, self._since = [REST], perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What runs in the context counts as this part."""
        self._note()
        self._parts.append(name)
        try:
            yield
        finally:
            self._note()
            self._parts.pop()

    def _note(self) -> None:
        now = perf_counter()
        self.seconds[self._parts[-1]] += now - self._since
        self._since = now


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


def few_tokens(scale: str, *words: str) -> list[str]:
    """The words of a scale with eight tokens in each of its microbatches."""
    config = resolved(words_of_scale(scale, *words, "device=cpu"))
    number = config["pipeline"]["num_microbatches"]
    return words_of_scale(scale, *words, *EF[:2], f"batch_size={number}", "seq_len=8")


def host(setting: GPUSetting) -> Iterator[Row]:
    """Yields a row per part of AdamW's update with a delay and Error Feedback: seconds of the host,
    eager and as the scale compiles it."""
    words = few_tokens(setting.scale, f"device={setting.device}", *setting.more)
    known = LAUNCHES.get(setting.scale, {})
    for way, more in (("eager", ["compile=false"]), ("as the scale says", [])):
        update = ours([*words, *more])
        for _ in range(WARM):
            update()
        watch = Stopwatch()
        with told_apart(watch.part):
            for _ in range(setting.rounds):
                with watch.part(REST):
                    update()
        for name in SHOWN:
            launches = {"fake_launches": known.get(name)} if more else {}
            yield {
                "name": f"{way}: {name}",
                "seconds": watch.seconds[name] / setting.rounds,
                **launches,
            }
