"""The files of a figure: their width, their letters, their words, and a dark variant."""

import base64
import io
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fontTools.ttLib import TTFont

from pipegap.analysis import gaps, load
from pipegap.analysis.__main__ import main
from pipegap.analysis.figures import BY_NAME, Plot, figure, plot, save, style
from pipegap.analysis.figures.figure import (
    PER_INCH,
    USUAL,
    WIDTHS,
    kept,
    sized,
    usual_faces,
    with_font,
)
from pipegap.analysis.figures.style import (
    COLOR,
    NIGHT,
    PAPER,
    READABLE,
    colors_of,
    contrast,
    dark,
    on_dark,
    readable,
)
from pipegap.analysis.report import page
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
    monkeypatch.setattr(figure, "picture", None)  # in this process alone
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


# Words can be read on paper and on a dark page, by WCAG's formula as it stands there.

STYLES = [*style.ARMS.values(), *style.OPTIMIZERS.values()]
SERIES = [
    *(style.color for style in STYLES),
    *(*style.OTHER_COLORS, *style.OTHER_OPTIMIZERS, *style.ORDERED),
    *(look.color for look in style.ordered_styles([*map(str, range(20))]).values()),
]
CSS = (Path(page.__file__).parent / "style.css").read_text()


def ratio(one: str, other: str) -> float:
    """WCAG 2.2, by hand."""

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(
    ("color", "expected"),
    [("#000000", 21.0), ("#ffffff", 1.0), ("#767676", 4.54), ("#ff0000", 4.0)],
)
def test_contrast_is_that_of_wcag(color: str, expected: float) -> None:
    """Those of the examples that everybody knows."""
    assert contrast(color, PAPER) == pytest.approx(expected, abs=0.005)
    assert contrast(color, NIGHT) == pytest.approx(ratio(NIGHT, color))


def test_every_colour_of_a_series_can_be_read_at_night_and_its_words_on_paper() -> None:
    for color in SERIES:
        assert ratio(on_dark(color), NIGHT) >= READABLE, color
        assert ratio(readable(color), PAPER) >= READABLE, color
        assert on_dark(on_dark(color)) == on_dark(color)
    assert ratio(on_dark("#56b4e9"), "#56b4e9") == 1, "what can be read stays"
    of_arms = {on_dark(look.color) for look in style.ARMS.values()}
    assert len(of_arms) == len(style.ARMS)


def test_words_of_charts_can_be_read_in_both_modes() -> None:
    words: dict[str, Any] = style.CONFIG
    for names in (("title", "color"), ("title", "subtitleColor"), ("axis", "labelColor")):
        color = words[names[0]][names[1]]
        assert ratio(color, PAPER) >= READABLE
        assert ratio(on_dark(color), on_dark(PAPER)) >= READABLE
    sizes = [int(size) for size in re.findall(r"ontSize': (\d+)", str(words))]
    assert len(sizes) >= 6
    assert min(sizes) >= 12


def test_a_dark_specification_has_other_colours_and_the_same_data() -> None:
    spec = {"mark": {"color": "#1b1b1b"}, "datasets": {"one": [{"series": "#1b1b1b"}]}}
    assert dark(spec) == {"mark": {"color": "#ececec"}, "datasets": spec["datasets"]}
    assert [*colors_of(spec)] == ["#1b1b1b"]


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_words_of_the_page_can_be_read_in_both_modes(mode: str) -> None:
    light, night, *_ = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    found = re.findall(r"--([a-z]+): (#[0-9a-f]+)", light if mode == "light" else night)
    colors = {name: "#" + "".join(2 * x for x in c[1:]) if len(c) == 4 else c for name, c in found}
    assert all(COLOR.fullmatch(color) for color in colors.values())
    assert colors["ground"] == (PAPER if mode == "light" else NIGHT)
    for words in ("ink", "soft", "good", "bad", "open", "link"):
        for ground in ("ground", "raised"):
            assert ratio(colors[words], colors[ground]) >= READABLE, (words, ground)


# What is kept is made once for a machine.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pipegap" / "kept"


def numbers() -> Callable[[], bytes]:
    each = count()
    return lambda: str(next(each)).encode()


@pytest.mark.usefixtures("folder")
def test_it_is_made_once_of_the_same_things() -> None:
    make = numbers()
    assert [kept(make, *of) for of in ("ab", "ab", "ac", "ab", "ac")] == [
        *(b"0", b"0", b"1", b"0", b"1")
    ]
    assert kept(make, "ab") == b"2", "one thing is not two"


@pytest.mark.usefixtures("folder")
def test_where_nothing_can_be_written_it_is_made_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    make = numbers()
    assert [kept(make, "a"), kept(make, "a")] == [b"0", b"1"]


def test_letters_are_the_same_made_and_kept(folder: Path) -> None:
    pages = []
    for _ in range(2):
        figure._usual.cache_clear()  # as in a new process
        figure._face.cache_clear()
        pages.append(usual_faces())
    assert folder.is_dir()
    assert pages[0] == pages[1]
    assert pages[0].count("@font-face") == 2
