"""The files of a figure: their width, their letters, their words, and a dark variant."""

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fontTools.ttLib import TTFont

from pipegap.analysis import gaps, load
from pipegap.analysis.__main__ import main
from pipegap.analysis.figures import BY_NAME, Plot, files, plot, save
from pipegap.analysis.figures.files import PER_INCH, USUAL, WIDTHS, sized, with_font
from pipegap.analysis.statistics.tax import paper_losses
from pipegap.trainer.base.children import Worker
from tests.support.synthetic_store import put

FIGURE = BY_NAME["final_losses"]


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the paper's own numbers."""
    store = tmp_path_factory.mktemp("paper")
    for optimizer, losses in paper_losses().items():
        for arm, loss in losses.items():
            put(store, arm, [loss], optimizer=optimizer)
    return store


@pytest.fixture(scope="module")
def made(paper: Path) -> Plot:
    trials = load(paper)
    return plot(FIGURE, FIGURE.data(trials, gaps(trials)))


@pytest.fixture(scope="module")
def drawn(made: Plot) -> Callable[[str, bool], str]:
    return lambda width, is_dark: sized(made, WIDTHS[width], is_dark=is_dark)


@pytest.mark.parametrize(("width", "inches"), [("one", 3.25), ("two", 6.75)])
def test_a_picture_is_as_wide_as_the_columns_of_a_paper(
    width: str, inches: float, drawn: Callable[[str, bool], str]
) -> None:
    svg = drawn(width, width == "two")
    found = re.search(r'width="([\d.]+)" height="[\d.]+" viewBox="0 0 ([\d.]+)', svg)
    assert found is not None
    assert float(found[1]) == pytest.approx(inches * PER_INCH)
    assert float(found[2]) == pytest.approx(inches * PER_INCH, rel=0.02), "hardly scaled"
    assert ("#161616" in svg) == (width == "two"), "the ground of the dark one"


def test_a_picture_may_be_drawn_by_another_process_and_is_the_same(
    made: Plot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    save(made, here)
    monkeypatch.setattr(files, "picture", None)  # in this process alone
    with Worker() as worker:
        save(made, there, worker)
    names = sorted(path.name for path in here.iterdir())
    assert names == sorted(path.name for path in there.iterdir())
    for name in names:
        if not name.endswith(".pdf"):  # the order of its objects is not fixed
            assert (here / name).read_bytes() == (there / name).read_bytes(), name


def test_every_letter_of_a_picture_is_in_its_own_font() -> None:
    """One face has usual letters alone, some of them in lines, the other one that is unusual."""
    texts = "<text>λ <tspan>−</tspan><tspan>1</tspan></text><text font-weight='600'>Ω₂ &amp;</text>"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1">{texts}</svg>'
    found = re.findall(r"font-weight:(\d+);src:url\(data:font/woff;base64,([^)]*)", with_font(svg))
    letters = {
        weight: {chr(code) for code in TTFont(io.BytesIO(base64.b64decode(data))).getBestCmap()}
        for weight, data in found
    }
    assert letters == {"400": {*"λ −1"}, "600": {*"Ω₂ &"}}
    assert {*"λ −1"} <= USUAL
    assert not {*"Ω₂ &"} <= USUAL


def test_the_papers_own_numbers_are_not_bent(drawn: Callable[[str, bool], str]) -> None:
    """AdamW's delay costs ten times what is left with Error Feedback: the picture has to say so."""
    svg = drawn("two", False)
    words = re.search(r'aria-label="([^"]*)"', svg)
    assert words is not None
    for said in ("AdamW delay +0.278", "AdamW delay + EF +0.028", "Muon delay +0.012"):
        assert f"gap {said}" in words[1]
    texts = re.findall(r"<text[^>]*>([^<]*)", svg)
    assert {"+0.278  n=1", "+0.028  n=1", "2.890  n=1", "AdamW", "delay + EF"} <= {*texts}
    rows = [text for text in texts if text in ("Adan", "Muon", "SOAP", "AdamW")]
    assert rows[:4] == ["Muon", "SOAP", "AdamW", "Adan"], "by their loss"


def test_the_command_writes_what_is_asked_for_and_refuses_the_rest(
    paper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["figures", f"results={paper}", f"out={tmp_path}"]
    assert main([*words, "width=one", "theme=dark", "only=final_losses"]) == 0
    assert not capsys.readouterr().err
    endings = {".svg", ".png", ".pdf", ".csv"}
    assert {path.name for path in tmp_path.iterdir()} == {f"final_losses{end}" for end in endings}
    assert b"/MediaBox [0 0 234 " in (tmp_path / "final_losses.pdf").read_bytes(), "3.25 inches"
    assert main([*words, "only=nothing"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
