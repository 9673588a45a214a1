"""What NVIDIA's own program tells of a machine: its driver, its GPUs, their links and clocks.

Nothing here needs CUDA. Where the program is missing, or does not know a thing, the answer says so.
"""

import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

PROGRAM, PLAIN = "nvidia-smi", "--format=csv,noheader,nounits"
ANSWER_WITHIN = 30.0
"""Seconds that the driver has for an answer."""
UNDERLINED = re.compile(r"\x1b\[\d*m")
"""What the program puts around the heads of its table of links."""
CLOCKS = (
    *("clocks.current.sm", "clocks.max.sm", "power.limit", "power.default_limit"),
    "clocks_throttle_reasons.active",
)
REASONS: Mapping[int, str] = {
    0x2: "clocks that were set for applications",
    0x4: "the power limit",
    0x8: "a slowdown by hardware",
    0x10: "other GPUs' clocks",
    0x20: "heat",
    0x40: "heat, by hardware",
    0x80: "the power supply",
    0x100: "clocks that were set for a display",
}
"""Bit → what lowers the clocks (NVML's nvmlClocksThrottleReasons); an idle GPU is no reason."""


class Clocks(NamedTuple):
    """Clocks of a GPU in MHz, its power limits in W, and what lowers its clocks now."""

    now: float
    most: float
    watts: float
    usual_watts: float
    lowered_by: Sequence[str]


def driver() -> tuple[str | None, list[str]]:
    """Return the version of the driver and the names of its GPUs; None and none without one."""
    rows = [
        line.partition(", ")
        for line in _told("--query-gpu=driver_version,name", PLAIN).splitlines()
        if ", " in line
    ]
    return (rows[0][0], [name for _, _, name in rows]) if rows else (None, [])


def links() -> dict[str, int]:
    """Return how many pairs of this machine's GPUs are linked in each way; empty if not told.

    NV18 are 18 NVLinks; PIX, PXB, PHB, NODE and SYS go through more and more of the host.
    """
    lines = UNDERLINED.sub("", _told("topo", "-m")).splitlines()
    table = [re.split(r"\s+", line.strip()) for line in lines if re.match(r"GPU\d+\s", line)]
    pairs: Counter[str] = Counter()
    for number, (_, *ways) in enumerate(table):
        pairs.update(islice(ways, number + 1, len(table)))  # the others of a pair are above
    return dict(pairs)


def clocks(uuid: str) -> Clocks | None:
    """Return the clocks of the GPU with this id (`GPU-…`); None if they are not told."""
    words = _told(f"--id={uuid}", f"--query-gpu={','.join(CLOCKS)}", PLAIN).strip().split(", ")
    try:
        *numbers, reasons = words
        now, most, watts, usual = map(float, numbers)
        lowered = [reason for bit, reason in REASONS.items() if int(reasons, 16) & bit]
    except ValueError:  # [N/A], or less than was asked for
        return None
    return Clocks(now, most, watts, usual, lowered)


def _told(*words: str) -> str:
    """Return what the program says; empty if there is none, if it fails, or does not answer."""
    try:
        asked = subprocess.run(
            (PROGRAM, *words), check=True, capture_output=True, text=True, timeout=ANSWER_WITHIN
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout
