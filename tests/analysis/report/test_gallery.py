"""The gallery: every figure and table of the paper in its order, also those that are not drawn."""

import re
from pathlib import Path

import pytest

from pipegap.analysis.claims import CLAIMS
from pipegap.analysis.figures import FIGURES
from pipegap.analysis.report.gallery import PAPER, places
from pipegap.analysis.report.paper_tables import TABLES
from tests.support.pages import page
from tests.support.synthetic_store import LOSSES, ids, record, write_arms

pytestmark = pytest.mark.usefixtures("few_figures")


def test_a_page_of_many_sweeps_opens_with_the_papers_figures_and_tables(tmp_path: Path) -> None:
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    for sweep in ("optimizers", "main"):
        record(store, sweep, "tiny", ids(store))
    text = page(store, tmp_path / "out")
    gallery = text.split('<ul class="gallery">')[1].split("</ul>")[0]
    shown = re.findall(r"<li>(.*?)</li>", gallery, re.DOTALL)
    names = [re.findall("<small>([^<]+)</small>", entry)[0] for entry in shown]
    assert names == [*PAPER]
    assert text.index('class="gallery"') < text.index('id="answer"')
    of_place = dict(zip(names, shown, strict=True))
    assert 'src="tiny/fig03_curves.svg"' in of_place["figure 3"]
    assert "not enough data" in of_place["tables 1, 2"]
    assert "<img" not in of_place["figure 4"]
    assert "Gap against momentum: its sweep was not run" in of_place["figure 4"]
    assert "pipegap sweep sweep=momentum scale=tiny" in of_place["figure 4"]
    assert "no trial has answered its tasks yet" in of_place["table 4"]
    assert 'href="#table-tiny/tableF_overhead"' in of_place["appendix F"]
    # None states what the memory of an arm is, though claims are judged on the same sweeps.
    assert "badge" not in of_place["appendix F"]
    for anchor in re.findall('href="#([^"]+)"', gallery):
        assert f'id="{anchor}"' in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tables 1, 2 (360M: figure 9)", {"table 1", "table 2"}),
        ("tables 1 to 3, figure 2", {"table 1", "table 2", "table 3", "figure 2"}),
        ("figures 17 and 18", {"figure 17", "figure 18"}),
        ("A.9 (135M)", {"appendix A.9"}),
        ("appendix F", {"appendix F"}),
        ("", set()),
    ],
)
def test_places_of_the_paper_are_read_from_words(words: str, expected: set[str]) -> None:
    assert places(words) == expected


def test_each_figure_table_and_claim_of_the_paper_has_a_place_in_the_gallery() -> None:
    known = {place for name in PAPER for place in places(name)}
    sources = {shown.source for shown in (*FIGURES, *TABLES) if shown.source}
    assert {place for words in sources for place in places(words)} == known
    for claim in CLAIMS:
        assert places(claim.place) <= known, claim.place
        assert places(claim.place), claim.place
