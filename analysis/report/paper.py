"""The paper's own numbers (arXiv 2606.30634), as far as public summaries state them."""

from __future__ import annotations

from collections.abc import Mapping

SCALE = "360m"
"""The scale of tables 1 and 2."""

LOSSES: Mapping[str, Mapping[str, float]] = {
    "muon": {"sync": 2.578, "delay": 2.590, "delay_ef": 2.583},
    "soap": {"sync": 2.581, "delay": 2.608, "delay_ef": 2.590},
    "adan": {"sync": 2.641, "delay": 2.651},
    "adamw": {"sync": 2.612, "delay": 2.890, "delay_ef": 2.640},
}
"""Tables 1 and 2: final validation losses by optimizer and arm; those missing are open."""


def reported(scale: str, optimizer: str) -> dict[str, float]:
    """The losses of tables 1 and 2 as columns `paper sync`, …; none of another scale."""
    known = LOSSES.get(optimizer, {}) if scale == SCALE else {}
    return {f"paper {arm}": loss for arm, loss in known.items()}


def note(scale: str) -> str:
    """Whether numbers of a scale may be held against those of tables 1 and 2."""
    if scale == SCALE:
        return "paper: tables 1 and 2 of arXiv 2606.30634, the same model, tokens and data; n=1."
    return (
        f"The paper's tables 1 and 2 are of {SCALE}, these numbers are of "
        f"{scale or 'trials of no sweep'}: the scale does not match, and so they are not set "
        "beside each other."
    )
