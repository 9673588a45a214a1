"""The README says what its published trials say."""

import re
from html import unescape

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
