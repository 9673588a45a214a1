"""The costs that docs/forecast.md tells of are those that the plans print."""

import re
from pathlib import Path

import pytest

from sweeps.__main__ import main

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| `python -m sweeps (.+)` \| (\d+) \| (.+) \|$",
    (ROOT / "docs" / "forecast.md").read_text(),
    re.MULTILINE,
)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "trials", "cost"), ROWS)
def test_a_plan_costs_what_the_page_says(
    words: str, trials: str, cost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), f"results={tmp_path / 'store'}"]) == 0
    plan = capsys.readouterr().out
    assert f", {trials} unique" in plan
    assert f"\ntime      {cost}," in plan


def test_every_scale_of_the_ladder_is_priced() -> None:
    scales = {word for words, *_ in ROWS for word in words.split() if word.startswith("scale=")}
    assert scales == {f"scale={name}" for name in ("few_updates", "tiny", "135m", "360m")}
