"""Words can be read on paper and on a dark page, by WCAG's formula as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest

from pipegap.analysis.figures import style
from pipegap.analysis.figures.colors import (
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
