"""A sweep's rule and that of the claims that it decides, in other words, have the same numbers."""

import re

import pytest

from pipegap.analysis.claims import CLAIMS, Claim
from pipegap.sweeps.request.files import ALL, sweep_files

VERDICTS = {name: content["verdict"] for name, content in sweep_files(ALL)}
"""Name of each sweep in conf/ and findings/ → its rule."""


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_thresholds_agree(claim: Claim) -> None:
    assert numbers(claim.rule) <= numbers(" ".join(VERDICTS[name] for name in claim.sweeps))


def numbers(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)", text))


def test_no_sweep_decides_by_whether_two_intervals_overlap() -> None:
    """Differences are paired: two overlapping intervals say neither that two numbers are equal nor
    that they are not."""
    for name, text in VERDICTS.items():
        assert "overlap" not in text, name
        assert "difference" not in text or "paired" in text, name
