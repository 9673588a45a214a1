"""The README says what its published trials say."""

import re
from html import unescape

import pytest

from findings import front

NUMBER = "+0.0295 [+0.0154, +0.0437]"


def test_the_answer_and_the_table_are_what_the_trials_say() -> None:
    text = front.README.read_text()
    assert front.front_page(text) == text, "make docs"
    changed = text.replace(NUMBER, "+0.0295 [+0.0154, +0.0438]").replace("**Yes,", "**No,")
    assert changed.count("**No,") == 1
    assert front.front_page(changed) == text


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
