"""The README says what its published trials say, and every other page is a record of its day."""

import re
from html import unescape
from pathlib import Path

import pytest

from findings import front

RECORDS = sorted(front.FINDINGS.rglob("*.md"))
DATED = "\n\n*A dated record: pipegap 0.2.0, 26 November 2026. "
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


@pytest.mark.parametrize("page", RECORDS, ids=lambda page: str(page.relative_to(front.FINDINGS)))
def test_a_page_of_findings_names_its_day(page: Path) -> None:
    assert DATED in page.read_text()[:200]


def test_the_first_page_links_to_every_study() -> None:
    studies = {page.parent.name for page in RECORDS} - {front.FINDINGS.name}
    linked = re.findall(r"\]\((\w+)/README\.md\)", (front.FINDINGS / "README.md").read_text())
    assert studies <= {*linked}
