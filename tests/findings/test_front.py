"""The README says what its published trials say."""

import re
from html import unescape

import pandas as pd
import pytest

from findings import front

NUMBER = "+0.0295 [+0.0154, +0.0437]"


def test_the_answer_and_the_table_are_what_the_trials_say() -> None:
    text = front.README.read_text()
    assert front.front_page(text) == text, "make docs"
    changed = text.replace(NUMBER, "+0.0295 [+0.0154, +0.0438]").replace(": yes,", ": no,")
    assert changed.count(": no,") == 1
    assert front.front_page(changed) == text


def test_the_first_table_has_the_differences_that_the_trials_have() -> None:
    """By hand from the published CSVs: runs of 2,750 updates take the time of 1F1B's 2,000."""
    rows = [line.strip("| ").split(" | ") for line in front.answer().splitlines() if "| " in line]
    heads, _, slowest, _, updates, look = rows
    job = pd.read_csv(front.JOB).astype({"num_updates": int})
    losses = job.set_index(["optimizer", "arm", "num_updates", "seed"])[
        "final_val_loss"
    ].sort_index()
    study = pd.read_csv(front.LOOK_AHEAD / "trials_tiny.csv")
    of_study = study.set_index(["optimizer", "arm", "seed"])["final_val_loss"].sort_index()
    for name, in_time, after, gain in zip(
        heads[1:], slowest[1:], updates[1:], look[1:], strict=True
    ):
        of = losses[name.lower()]
        expected = {
            in_time: of["delay_ef", 2750] - of["sync", 2000],
            after: of["delay_ef", 2000] - of["sync", 2000],
            gain: of_study[name.lower(), "sync_ema_nesterov(look_ahead=0.3)"]
            - of_study[name.lower(), "sync"],
        }
        for cell, differences in expected.items():
            mean = float(cell.split(" ")[0].replace("\N{MINUS SIGN}", "-"))
            assert mean == pytest.approx(differences.mean(), abs=5.1e-4)
    in_time_losses = [losses[name.lower()]["delay_ef", 2750].mean() for name in heads[1:]]
    assert in_time_losses == sorted(in_time_losses)


def test_the_price_of_the_paper_s_scale_is_that_of_the_table_of_prices() -> None:
    [hours] = re.findall(r"make sweep-135m .*: (\S+) GPU-hours", front.README.read_text())
    assert f"| `main` | `135m` | 24 | {hours} |" in front.SWEEPS.read_text()


def test_the_picture_is_what_the_trials_say() -> None:
    """By what it says to a reader who does not see it: every mean with its interval."""
    kept = front.PICTURE.read_text()
    words = re.search(r'aria-label="([^"]*)"', kept)
    assert words is not None, "make docs"
    assert unescape(words[1]) == front.pictured()["description"], "make docs"
    assert "@font-face" in kept, "its letters are those that it was measured with"


def test_the_hours_of_the_paper_s_scales_are_those_of_a_plan() -> None:
    """One of them, by its row; the others take a while."""
    text = front.SWEEPS.read_text()
    row = front.gpu_hours([("main", "135m")]).splitlines()[-1]
    assert f"\n{row}\n" in text, "make docs"


@pytest.mark.slow
def test_all_hours_are_those_of_a_plan() -> None:
    text = front.SWEEPS.read_text()
    assert front.filled(text, {"hours": front.gpu_hours()}) == text, "make docs"
