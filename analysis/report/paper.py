"""The paper's own numbers (arXiv 2606.30634), as far as public summaries state them."""

from __future__ import annotations

from analysis.statistics.reported import paper_losses

SCALE = "360m"
"""The scale of tables 1 and 2."""

LOSSES = paper_losses()
"""Tables 1 and 2: final validation losses by optimizer and arm; those missing are open."""


def reported(scale: str, optimizer: str) -> dict[str, float]:
    """The losses of tables 1 and 2 as columns `paper sync`, …; empty at any other scale."""
    known = LOSSES.get(optimizer, {}) if scale == SCALE else {}
    return {f"paper {arm}": loss for arm, loss in known.items()}


SCALE_OF_SCORES = "10b"
"""The scale of table 4."""
SCORES = {"mmlu": (0.411, 0.407), "hellaswag": (0.670, 0.673), "piqa": (0.775, 0.778)}
"""Table 4: sync and delay with Error Feedback, of one run each; those missing are open."""


def reported_scores(scale: str, task: str) -> dict[str, float]:
    """The scores of table 4 as columns `paper sync`, `paper delay_ef`; empty at another scale."""
    known = SCORES.get(task, ()) if scale == SCALE_OF_SCORES else ()
    return {f"paper {arm}": score for arm, score in zip(("sync", "delay_ef"), known, strict=False)}


def note(scale: str) -> str:
    """Whether numbers of a scale may be compared with those of tables 1 and 2, in words."""
    if scale == SCALE:
        return "paper: tables 1 and 2 of arXiv 2606.30634, the same model, tokens and data; n=1."
    return (
        f"The paper's tables 1 and 2 are of {SCALE}, these numbers are of "
        f"{scale or 'trials of no sweep'}: the scale does not match, and so they are not set "
        "beside each other."
    )
