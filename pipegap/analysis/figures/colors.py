"""Colours by their contrast: what is drawn on a dark ground instead, and words in a colour.

Contrast is that of WCAG 2.2: 4.5 : 1 is what it asks of words.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

READABLE = 4.5
"""The least contrast of words."""
STEP = 0.02
"""Share of black or white by which a colour is changed at a time."""
COLOR = re.compile("#[0-9a-f]{6}")
INK, SOFT, GRID = "#1b1b1b", "#5d5d5d", "#e4e4e4"
"""Words and the line of 0; words beside these; grid lines."""
ON_COLOR = "#010101"
"""Words and frames of cells, which are pale on a dark page too."""
PAPER, NIGHT = "#ffffff", "#161616"
"""The two grounds."""
DARK: Mapping[str, str] = {
    PAPER: NIGHT,
    "#000000": "#f2f2f2",
    INK: "#ececec",
    SOFT: "#a8a8a8",
    GRID: "#333333",
    ON_COLOR: ON_COLOR,
}
"""Colours that are not only lightened on a dark ground → what is drawn there instead."""


def contrast(color: str, background: str) -> float:
    """Return the ratio of the luminances of two colours, from 1 to 21."""
    darker, lighter = sorted(map(_luminance, (color, background)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    parts = [part / 255 for part in parts_of(color)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def parts_of(color: str) -> list[int]:
    """Return red, green and blue, of 255."""
    return [int(color[at : at + 2], 16) for at in (1, 3, 5)]


def mixed(color: str, target: str, share: float) -> str:
    """Return the colour between two, with a `share` of the other."""
    pairs = zip(parts_of(color), parts_of(target), strict=True)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in pairs)


def readable(color: str) -> str:
    """Return the colour for words on paper, so dark that they can be read."""
    return _changed(color, "#000000", PAPER)


def on_dark(color: str) -> str:
    """Return what is drawn instead on a dark ground: as readable as words."""
    return DARK.get(color) or _changed(color, "#ffffff", NIGHT)


def _changed(color: str, toward: str, ground: str) -> str:
    share, candidate = 0.0, color
    while contrast(candidate, ground) < READABLE:
        share += STEP
        candidate = mixed(color, toward, share)
    return candidate


def dark(spec: Any) -> Any:
    """Return a specification for a dark ground; its data stay."""
    if isinstance(spec, dict):
        return {key: part if key == "datasets" else dark(part) for key, part in spec.items()}
    if isinstance(spec, list):
        return [dark(part) for part in spec]
    return on_dark(spec) if isinstance(spec, str) and COLOR.fullmatch(spec) else spec


def colors_of(spec: Any) -> Iterator[str]:
    """Yield the colours of a specification."""
    if isinstance(spec, dict):
        spec = [part for key, part in spec.items() if key != "datasets"]
    if isinstance(spec, list):
        for part in spec:
            yield from colors_of(part)
    elif isinstance(spec, str) and COLOR.fullmatch(spec):
        yield spec
