"""The picture of the README shows what the schedules do."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench import schedule_picture
from bench.schedule_picture import COLORS, COSTS, NUM_BATCHES, simulated, specification
from tests.support.markdown import ROOT
from trainer.schedules.recipes import pipedream_2bw, sync

SHAPE: dict[str, Any] = {"num_stages": 4, "num_microbatches": 4}
FLUSHED = simulated(sync(NUM_BATCHES, **SHAPE))
FREE = simulated(pipedream_2bw(6, **SHAPE, synchronous_start=0, synchronous_cooldown=0))


def rows(panel: int) -> list[dict[str, Any]]:
    spec = specification(FLUSHED, FREE)["vconcat"][panel]
    found: list[dict[str, Any]] = spec["data"]["values"]
    return found


@pytest.mark.parametrize("panel", [0, 1])
def test_a_row_is_filled_without_overlap(panel: int) -> None:
    for rank in range(4):
        bars = [row for row in rows(panel) if row["rank"] == f"rank {rank}"]
        assert bars[0]["start"] == 0
        assert bars[-1]["end"] == FLUSHED.makespan
        assert all(a["end"] == b["start"] for a, b in pairwise(bars))


def test_idle_is_what_the_title_says() -> None:
    idle = sum(row["end"] - row["start"] for row in rows(0) if row["kind"] == "idle (bubble)")
    assert idle == pytest.approx(FLUSHED.bubble * 4 * FLUSHED.makespan)
    once_full = max(row["end"] for row in rows(1) if row["kind"] == "idle (bubble)")
    assert once_full <= 3 * (COSTS["F"] + COSTS["B"]) + COSTS["F"], "2BW waits at first only"


def test_the_picture_in_the_documents_is_of_now(tmp_path: Path) -> None:
    schedule_picture.main(tmp_path / "picture.svg")
    made, kept = (
        (tmp_path / "picture.svg").read_text(),
        (ROOT / "docs" / "pipelines.svg").read_text(),
    )
    for said in ("22 units of time per batch", "13 units of time per batch", "rank 3", *COLORS):
        assert said in made
        assert said in kept
    assert made.count("<path") == kept.count("<path")
