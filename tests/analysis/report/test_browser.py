"""The page in a browser: no message, pictures and charts, every width, print."""

import base64
import io
import re
import unicodedata
from typing import Any

import pytest

from pipegap.analysis.report.report import TRIALS
from tests.support.browser import Opened, needs_browser, resize, wait

pytestmark = needs_browser


def test_the_console_has_no_message(browser: Any) -> None:
    assert browser.get_log("browser") == []


def test_a_picture_stands_in_until_its_charts_are_drawn(opened: Opened, browser: Any) -> None:
    """Without scripts nothing is missing."""
    look = (
        "return [...document.querySelectorAll('figure')].map(figure => {"
        "const [picture, image] = [figure.querySelector('.picture'), figure.querySelector('img')];"
        "return [picture.offsetHeight > 100 && image.complete && image.naturalWidth > 100,"
        " figure.querySelector('.panels').offsetHeight > 100]})"
    )
    resize(browser, 1400)  # on a phone a picture is lower
    with_charts = browser.execute_script(look)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(opened.address)
        plain = browser.execute_script(look)
        resize(browser, 390)
        widths, page = browser.execute_script(
            "return [[...document.querySelectorAll('.picture img')].map((img) => img.width),"
            " document.documentElement.scrollWidth]"
        )
        rows = browser.execute_script(
            "return document.querySelectorAll('noscript tbody tr').length"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        browser.get(opened.address)
    assert {*map(tuple, with_charts)} == {(False, True)}
    assert {*map(tuple, plain)} == {(True, False)}
    assert (min(widths) >= 600, page <= 390) == (True, True), "on a phone each scrolls in its box"
    assert rows > 5


def test_every_chart_has_marks(browser: Any) -> None:
    num_marks = browser.execute_script(
        "return [...document.querySelectorAll('.panel')].map(panel =>"
        " panel.querySelectorAll('svg [class*=mark-] > *:not(g)').length)"
    )
    assert len(num_marks) >= 4
    assert min(num_marks) > 3


def test_charts_are_drawn_in_the_font_that_places_their_words(browser: Any) -> None:
    """The page brings it along: few machines have it, and others would draw wider letters."""
    loaded = browser.execute_script(
        "return [...document.fonts].map(face => [face.family.replaceAll('\"', ''), face.status])"
    )
    assert loaded
    assert {*map(tuple, loaded)} == {("Source Sans Pro", "loaded")}
    used = browser.execute_script(
        "return [...document.querySelectorAll('.panel svg text')]"
        ".map(text => getComputedStyle(text).fontFamily)"
    )
    assert used
    assert all("Source Sans Pro" in family for family in used)


def test_the_contents_stay_in_view(browser: Any) -> None:
    for width in (390, 1280):
        resize(browser, width)
        for target in ("verdicts", "provenance"):
            browser.execute_script(f"document.getElementById('{target}').scrollIntoView()")
            top, bottom, height = browser.execute_script(
                "const {top, bottom} = document.querySelector('nav summary')"
                ".getBoundingClientRect(); return [top, bottom, innerHeight]"
            )
            assert 0 <= top < bottom <= height
    links = browser.execute_script(
        "return [...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))"
    )
    missing = [at for at in links if not browser.find_elements("id", at)]
    assert not missing


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_the_page_never_scrolls_sideways(browser: Any, width: int) -> None:
    resize(browser, width)
    page, window = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert page <= window


WIDTHS = (
    "return [...document.querySelectorAll('.panel .chart svg')]"
    ".map((svg) => svg.getBoundingClientRect().width)"
)


def test_charts_fit_a_phone(browser: Any) -> None:
    resize(browser, 390)
    # Charts are drawn anew one after another.
    wait(browser).until(lambda page: max(page.execute_script(WIDTHS)) <= 390)
    assert min(browser.execute_script(WIDTHS)) > 200
    plots = browser.execute_script(
        "return [...document.querySelectorAll('.panel .role-frame > g > path.background')]"
        ".map((plot) => plot.getBoundingClientRect().width)"
    )
    assert len(plots) >= 4
    assert min(plots) > 390 / 3, "names, and words beside, leave a third to the data"


WORDS = """
const parts = (color) => color.match(/[\\d.]+/g).map(Number);
const luminance = (color) => parts(color).slice(0, 3).map((part) => part / 255)
  .map((p) => p <= 0.04045 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4)
  .reduce((sum, p, at) => sum + p * [0.2126, 0.7152, 0.0722][at], 0);
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const color = getComputedStyle(node).backgroundColor;
    if ((parts(color)[3] ?? 1) > 0.5) return color;
  }
  return 'rgb(255, 255, 255)';
};
return [...document.querySelectorAll('body *:not(script, style)')]
  .filter((node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
  .filter((node) => node.getClientRects().length && getComputedStyle(node).opacity > 0)
  .map((node) => {
    const [style, chart] = [getComputedStyle(node), node.closest('svg')];
    const [one, other] = [chart ? style.fill : style.color, ground(node)].map(luminance);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    return [ratio, chart ? parseFloat(style.fontSize) : null, node.textContent.trim().slice(0, 40)];
  })
"""


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_word_can_be_read(browser: Any, mode: str) -> None:
    """By WCAG, of what is drawn: 4.5 : 1, and no letter of a chart is smaller than 12 pixels."""
    wanted = [{"name": "prefers-color-scheme", "value": mode}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
    try:
        found = browser.execute_script(WORDS)
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(found) > 200
    assert [word for word in found if word[0] < 4.5 or (word[1] or 12) < 12] == []


def test_print_loses_no_word(browser: Any) -> None:
    """The list of trials and the licence are for the screen."""
    pypdf = pytest.importorskip("pypdf")
    resize(browser, 1280)
    cells, labels = browser.execute_script(
        "const words = (cell) => Array.isArray(cell) ? cell[0] : cell ?? '';"
        "return [[...document.querySelectorAll('.table:not(#trials *)')].flatMap(block =>"
        "  block.dataTable.rows().data().toArray().flatMap(row => row.map(words))),"
        " [...document.querySelectorAll('.panel svg text, .page li, .page dd')]"
        "  .map(text => text.textContent)]"
    )
    asked = {"preferCSSPageSize": True, "printBackground": True}
    printed = browser.execute_cdp_cmd("Page.printToPDF", asked)["data"]
    pdf = pypdf.PdfReader(io.BytesIO(base64.b64decode(printed)))
    text = squeezed("".join(page.extract_text() for page in pdf.pages))
    assert len(cells) > 100
    assert squeezed("The MIT License") not in text
    assert squeezed(TRIALS) not in text
    assert [words for words in [*cells, *labels] if squeezed(words) not in text] == []


def squeezed(text: str) -> str:
    """Without ligatures, and the spaces and hyphens at which lines are broken."""
    return re.sub(r"[\s\u00ad]+", "", unicodedata.normalize("NFKC", text))
