"""An update beside what a fake GPU counted of it (tests/fake_cuda): its memory and launches, and
where the host's time goes, part by part, when the GPU has little to do."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter

from bench.gpu.device import GPUSetting, Row, prepare
from tests.support.fake_cuda.parts import (
    LAUNCHES,
    PARTS,
    PEAKS,
    REST,
    few_tokens,
    in_two,
    told_apart,
)
from tests.support.steps import ours

SHOWN = (*dict.fromkeys(PARTS.values()), REST)
WARM = 3
"""Updates before those that are timed."""


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


def beside(setting: GPUSetting) -> Iterator[Row]:
    """Yields the peak of an update, and the one that was recorded of a fake GPU."""
    words = in_two(setting.scale, f"device={setting.device}", *setting.more)
    ready = prepare(partial(ours, words), setting.device)
    known = None if setting.more else PEAKS.get(setting.scale)
    what = ", ".join((setting.scale, *(setting.more or ["AdamW"])))
    yield {
        "name": f"{what}, delay + EF, eager, two microbatches",
        "peak": ready.peak,
        "fake_peak": known and 1e9 * known,
    }


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
