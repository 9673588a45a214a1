"""Tables, numbers, verdicts and figures of the pages follow from the published trials."""

import re
from html import unescape
from pathlib import Path

import pytest

from analysis.claims import CLAIMS, Outcome
from findings.code.calls import CALLS
from findings.code.calls.sentences import contradicted
from findings.code.pages import PARTS, PICTURES, made, pages, pictured
from findings.code.published import FEW, FINDINGS, TINY, sweeps
from tests.support.markdown import ROOT
from trainer.base.errors import BadInput

pytestmark = pytest.mark.filterwarnings("ignore:.*(pairs mix|several versions):UserWarning")
MEASURED = re.compile(r"[+−-]\d\.\d{3}|\[[+−-]?\d+(\.\d+)?, [+−-]?\d+|\d %")
"""A gap, an interval or a share."""
MARKERS = re.compile(r"<!-- (?!end -->)(.*?) -->", re.DOTALL)
VERDICT = re.compile(r"^\| `(\w+)` \| (.*?) \| \*\*(.*?)\*\*.* \| (.+) \|$", re.MULTILINE)
"""A row of the table of verdicts: sweep, statement, outcome, and how sure it is."""
NUMBER = "+0.405 [+0.313, +0.496]"
MADE = [page for page in pages() if MARKERS.search(page.read_text())]
WRITTEN_ANEW = [page for page in MADE if not page.is_relative_to(FINDINGS)]
"""The pages of findings/ are a record of what was said of the trials when they were published."""
VERDICTS, README = FINDINGS / "verdicts.md", FINDINGS / "README.md"


def without_parts(page: Path) -> str:
    return re.sub(r"<!-- (?!end).*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", WRITTEN_ANEW, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_pages_are_what_the_trials_say(page: Path) -> None:
    text = page.read_text()
    assert made(text, page) == text, "make docs"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_measured_number_stands_elsewhere(page: Path) -> None:
    """Pictures have words of their own."""
    lines = without_parts(page).splitlines()
    prose = "\n".join(line for line in lines if not line.startswith("!["))
    prose = re.sub(r"```.*?```", "", prose, flags=re.DOTALL).replace("95 %", "")
    assert not MEASURED.findall(prose)


def test_a_number_that_was_changed_by_hand_is_noticed() -> None:
    page = FINDINGS / "taylor" / "README.md"
    part = next(part[0] for part in PARTS.finditer(page.read_text()) if NUMBER in part[0])
    changed = part.replace(NUMBER, "+0.405 [+0.313, +0.497]")
    assert changed != part
    assert made(changed, page) == part


def test_every_call_is_made_by_a_page() -> None:
    markers = {marker for page in MADE for marker in MARKERS.findall(page.read_text())}
    assert {marker.split()[0] for marker in markers} == {*CALLS}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- nothing -->\n<!-- end -->", "must be one of"),
        ("<!-- verdicts sweep=momentum size=2 -->\n<!-- end -->", "size"),
        ("<!-- verdicts sweep=nothing scale=tiny -->\n<!-- end -->", "must be one of"),
        ("<!-- claims -->\n", "must be followed by <!-- end -->"),
        ("<!-- claims -->\n<!-- taxes -->\n<!-- end -->", "must be followed by <!-- end -->"),
    ],
)
def test_a_marker_that_is_no_call_is_refused_in_a_line_that_names_the_page(
    text: str, said: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(said)) as refused:
        made(text, README)
    assert str(refused.value).startswith("findings/README.md=")
    assert "\n" not in str(refused.value)


def test_the_table_has_the_verdict_of_every_claim_about_a_published_sweep() -> None:
    """Also the ones that contradict the paper; that they are those of the rules, the page's parts
    say, which are made again above."""
    rows = VERDICT.findall(VERDICTS.read_text())
    assert [row[:2] for row in rows] == [
        (sweep, claim.statement)
        for scale in (FEW, TINY)
        for sweep in sweeps(scale)
        for claim in CLAIMS
        if sweep in claim.sweeps
    ]
    assert {outcome for _, _, outcome, _ in rows} == {*Outcome}
    decided = [sure for _, _, outcome, sure in rows if outcome != Outcome.UNDECIDED]
    assert all("rate" in sure for sure in decided)


def test_the_first_page_has_every_claim_and_links_to_every_study() -> None:
    text = README.read_text()
    assert all(f"| {claim.statement} (" in text for claim in CLAIMS)
    studies = {path.parent.name for path in FINDINGS.glob("*/README.md")}
    assert studies <= {*re.findall(r"\]\((\w+)/README\.md\)", text)}
    assert len(text.splitlines()) < 120


def test_a_claim_that_is_contradicted_is_said_to_be_on_the_page_of_its_study() -> None:
    text = " ".join(" ".join(page.read_text() for page in MADE).split())
    lines = [line for scale in (FEW, TINY) for line in contradicted(scale).split("; ")]
    statements = [re.findall(r"\*(.*?)\*", line)[0] for line in lines]
    assert len(statements) == VERDICTS.read_text().count("| **contradicted**")
    assert all(f"**Contradicted**: *{statement}*." in text for statement in statements)


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_are_what_the_trials_say(name: str) -> None:
    """By what they say to a reader who does not see them: every mean with its interval."""
    kept = (FINDINGS / f"{name}.svg").read_text()
    words = re.search(r'aria-label="([^"]*)"', kept)
    assert words is not None, "make docs"
    assert unescape(words[1]) == pictured(name)["description"], "make docs"
    assert "@font-face" in kept, "its letters are those that it was measured with"


def test_every_picture_is_shown_on_a_page() -> None:
    shown = " ".join(page.read_text() for page in pages())
    assert all(f"{name.rpartition('/')[2]}.svg" in shown for name in PICTURES)
    assert {f"{name}.svg" for name in PICTURES} == {
        str(path.relative_to(FINDINGS)) for path in FINDINGS.rglob("*.svg")
    }
