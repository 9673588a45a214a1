"""An advice on a store of the test's own."""

from pathlib import Path
from typing import Any

from pipegap.analysis import advise, load
from pipegap.analysis.advice.verdict import Advice


def ask(store: Path, stages: int = 4, microbatches: int = 8, **more: Any) -> Advice:
    more = {"optimizer": "adamw", "stages": stages, "microbatches": microbatches} | more
    return advise(load(store), **more)
