"""A sweep's rule and that of the claims that it decides, in other words, have the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from analysis.claims import CLAIMS, Claim

CONF = Path(__file__).parent.parent / "conf" / "sweep"
MORE_THAN_ITS_SWEEPS = {"ef_most", "spike"}
"""The paper's 50 to 90 %, and whether there is a spike at all: sweeps do not ask it."""


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_thresholds_agree(claim: Claim) -> None:
    verdicts = [
        yaml.safe_load((CONF / f"{name}.yaml").read_text())["verdict"] for name in claim.sweeps
    ]
    agree = numbers(claim.rule) <= numbers(" ".join(verdicts))
    assert agree != (claim.name in MORE_THAN_ITS_SWEEPS)


def numbers(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)", text))
