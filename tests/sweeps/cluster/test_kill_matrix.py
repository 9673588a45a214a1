"""Whatever is killed at whatever moment: nothing is lost, nothing runs twice, nothing is left."""

import random
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support import small
from tests.support.small_sweep import GANG, LENGTH, SmallSweep, check, disturb

pytestmark = pytest.mark.slow
MATRIX = [
    ("driver", signal.SIGKILL),
    ("driver", signal.SIGTERM),
    ("trial", signal.SIGKILL),
    ("rank", signal.SIGKILL),
    ("raylet", signal.SIGKILL),
]
"""One moment each; `python -m bench.sweep kills` has more."""


@pytest.fixture(scope="module")
def small_words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    words = small.overrides(tmp_path_factory.mktemp("data"), *LENGTH)
    return tuple(word for word in words if not word.startswith("results="))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], SmallSweep]:
    """The sweep with some words that ran undisturbed."""

    @cache
    def run(words: tuple[str, ...]) -> SmallSweep:
        sweep = SmallSweep(tmp_path_factory.mktemp("whole"), words)
        sweep.finish()
        return sweep

    return run


@pytest.mark.parametrize(("target", "how"), MATRIX)
def test_a_sweep_survives(
    target: str,
    how: signal.Signals,
    small_words: tuple[str, ...],
    whole: Callable[[tuple[str, ...]], SmallSweep],
    tmp_path: Path,
) -> None:
    words = (*small_words, *GANG) if target == "rank" else small_words
    undisturbed, sweep = whole(words), SmallSweep(tmp_path, words)
    moment = random.Random(target + how.name).randrange(undisturbed.num_updates())
    is_killed, _ = disturb(sweep, target, how, moment)
    assert is_killed
    sweep.finish()
    check(sweep, undisturbed)
