"""A point outside of the paper's regime says so in every table, and in words."""

from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.statistics.gaps import INACTIVE, SHORT, regimes
from pipegap.analysis.statistics.text import notes
from tests.support.synthetic_store import put

BOTH = f"{SHORT}, {INACTIVE}"


@pytest.mark.parametrize(
    ("updates", "momentum", "lr", "decay", "expected"),
    [
        (1000, 0.9, 0.002, 1.0, ""),  # 0.002 · 1 · 550 = 1.1
        (999, 0.9, 0.002, 1.0, SHORT),
        (1000, 0.9, 0.001, 1.0, INACTIVE),
        (400, 0.9, 0.004, 0.1, BOTH),  # the scale few_updates
        (1600, 0.95, 0.002, 1.0, SHORT),  # Muon at the scale tiny: 2,000 are needed
        (2000, 0.95, 0.002, 1.0, ""),
        (2000, 0.95, 0.002, 0.0, INACTIVE),
        (11_725, 0.95, 0.001, 0.1, INACTIVE),  # 0.64
        (20_000, None, 0.002, 0.1, ""),
    ],
)
def test_each_rule_by_hand(
    updates: int, momentum: float | None, lr: float, decay: float, expected: str
) -> None:
    keys = {"optimizer.momentum": momentum, "optimizer.lr": lr, "optimizer.weight_decay": decay}
    trials = pd.DataFrame([{"point": "a", "num_updates": updates, **keys}])
    assert regimes(trials) == {"a": expected}


USUAL = {"optimizer.momentum": 0.9, "optimizer.lr": 0.01, "optimizer.weight_decay": 1.0}


@pytest.mark.parametrize(
    ("updates", "keys"),
    [([7, 1000], USUAL), ([None], USUAL), ([10], {})],
    ids=["a run that diverged early", "a length that is not known yet", "keys of no optimizer"],
)
def test_what_breaks_no_rule(updates: list[int | None], keys: dict[str, float]) -> None:
    rows = [{"point": "a", "num_updates": num, **keys} for num in updates]
    trials = pd.DataFrame(rows).astype({"num_updates": "Int64", "point": "string"})
    assert regimes(trials) == {"a": ""}


def test_the_gap_of_such_a_point_and_the_remarks_say_so(tmp_path: Path) -> None:
    """Of momenta 0.5 and 0.9 in 400 updates, the second is short; neither has a decay."""
    for momentum in (0.5, 0.9):
        for arm, loss in (("sync", 1.7), ("delay", 2.0)):
            put(tmp_path, arm, [loss, loss], momentum=momentum)
    trials = load(tmp_path)
    table = gaps(trials)
    assert dict(zip(table["setting"], table["regime"], strict=True)) == {
        "optimizer.momentum=0.5": "",
        "optimizer.momentum=0.9": SHORT,
    }
    [remark] = [line for line in notes(trials, table) if "regime" in line]
    assert SHORT in remark
    assert remark.endswith("adamw (optimizer.momentum=0.9)")
