"""A sweep's rule and that of the claims that it decides, in other words, have the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from analysis.claims import CLAIMS, Claim

CONF = Path(__file__).parents[3] / "conf" / "sweep"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_thresholds_agree(claim: Claim) -> None:
    verdicts = [
        yaml.safe_load((CONF / f"{name}.yaml").read_text())["verdict"] for name in claim.sweeps
    ]
    assert numbers(claim.rule) <= numbers(" ".join(verdicts))


def numbers(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)", text))


def test_no_sweep_decides_by_whether_two_intervals_overlap() -> None:
    """Differences are paired: two overlapping intervals say neither that two numbers are equal nor
    that they are not."""
    for path in CONF.glob("*.yaml"):
        text = yaml.safe_load(path.read_text())["verdict"]
        assert "overlap" not in text, path.name
        assert "difference" not in text or "paired" in text, path.name
