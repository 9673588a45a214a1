"""Tables, numbers and verdicts of the documents follow from the trials published beside them."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from analysis.claims import CLAIMS, Outcome, judged
from bench.documents.pages import DOCUMENTS, PLACE, written
from bench.documents.parts import PARTS
from bench.documents.pictures import PICTURES, pictured
from bench.documents.published import SCALES, of_sweep
from bench.documents.sentences import contradicted
from bench.documents.spike import by_published
from tests.support.markdown import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:.*(pairs mix|several versions):UserWarning")
MEASURED = re.compile(r"[+−-]\d\.\d{3}|\[[+−-]?\d+(\.\d+)?, [+−-]?\d+|\d %")
"""A gap, an interval or a share."""
LINE = re.compile(r"^\| `(\w+)` \| (.*?) \| \*\*(.*?)\*\*.* \| (.+) \|$", re.MULTILINE)
"""Of the table of verdicts: sweep, statement, outcome, and how sure it is."""
NUMBER = "+0.405 [+0.313, +0.496]"
each = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


@each
def test_the_documents_are_what_the_trials_say(document: Path) -> None:
    text = document.read_text()
    assert PLACE.search(text)
    assert written(text) == text, "make docs"


@each
def test_no_measured_number_stands_elsewhere(document: Path) -> None:
    """Pictures have words of their own."""
    rest = PLACE.sub("", document.read_text())
    prose = "\n".join(line for line in rest.splitlines() if not line.startswith("!["))
    prose = re.sub(r"```.*?```", "", prose, flags=re.DOTALL).replace("95 %", "")
    assert not MEASURED.findall(prose)


def test_a_number_that_was_changed_by_hand_is_noticed() -> None:
    findings = (ROOT / "docs" / "findings.md").read_text()
    place = next(at[0] for at in PLACE.finditer(findings) if NUMBER in at[0])
    changed = place.replace(NUMBER, "+0.405 [+0.313, +0.497]")
    assert changed != place
    assert written(changed) == place


def test_every_part_is_used_and_an_unknown_one_is_an_error() -> None:
    used = {name for path in DOCUMENTS for _, _, name, _ in PLACE.findall(path.read_text())}
    assert used == {*PARTS}
    with pytest.raises(KeyError, match="nothing"):
        written("<!-- table: nothing -->\n<!-- end -->")


def test_the_table_has_the_verdict_of_every_claim_about_a_published_sweep() -> None:
    """Also the ones that contradict the paper."""
    findings = (ROOT / "docs" / "findings.md").read_text()
    said = re.findall(
        r"^\| `(\w+)` \| (.*?) \| \*\*(.*?)\*\*.* \| (.+) \|$", findings, re.MULTILINE
    )
    assert [tuple(line[:3]) for line in said] == [
        (sweep, claim.statement, judged(by_published(claim, scale), trials).outcome)
        for scale, sweeps in SCALES.items()
        for sweep in sweeps
        for trials in [of_sweep(sweep, scale).trials]
        for claim in CLAIMS
        if sweep in claim.sweeps
    ]
    assert {outcome for _, _, outcome, _ in said} == {*Outcome}
    assert all("would" in sure for _, _, outcome, sure in said if outcome != Outcome.UNDECIDED)


def test_the_claims_that_are_contradicted_are_said_to_be_in_one_line_and_in_their_sections() -> (
    None
):
    findings = " ".join((ROOT / "docs" / "findings.md").read_text().split())
    said = [contradicted(scale).split(": ", 1)[1].rstrip(".") for scale in SCALES]
    lines = [line for one in said if not one.startswith("nothing") for line in one.split("; ")]
    statements = [line.rpartition(" (`")[0] for line in lines]
    assert len(statements) == findings.count("| **contradicted**")
    assert all(f"**Contradicted**: {statement}." in findings for statement in statements)


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_are_what_the_trials_say(name: str) -> None:
    """By what they say to a reader who does not see them: every mean with its interval."""
    kept = (ROOT / "docs" / f"{name}.svg").read_text()
    words = re.search(r'aria-label="([^"]*)"', kept)
    assert words is not None, "make docs"
    assert unescape(words[1]) == pictured(name)["description"], "make docs"
    assert "@font-face" in kept, "its letters are those that it was measured with"


def test_every_picture_is_shown_in_a_document() -> None:
    shown = " ".join(path.read_text() for path in DOCUMENTS)
    assert all(f"{name}.svg" in shown for name in PICTURES)
