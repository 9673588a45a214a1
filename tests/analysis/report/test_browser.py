"""The page in a browser: no message, pictures and charts, every width, print."""

import base64
import io
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest

from analysis.report.report import TRIALS
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
        rows = browser.execute_script(
            "return document.querySelectorAll('noscript tbody tr').length"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        browser.get(opened.address)
    assert {*map(tuple, with_charts)} == {(False, True)}
    assert {*map(tuple, plain)} == {(True, False)}
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


def test_a_chart_shrinks_to_the_width_that_its_plot_had(browser: Any) -> None:
    """Vega's signal of the width then has the new value already."""
    resize(browser, 390)
    margins = browser.execute_script(
        "return innerWidth - document.querySelector('.panel .chart').clientWidth"
    )
    resize(browser, 1280)
    wait(browser).until(lambda page: page.execute_script(FITS))
    plot = browser.execute_script(
        "return document.querySelector('.panel .chart path.background').getBBox().width"
    )
    resize(browser, round(plot) + margins)
    wait(browser).until(lambda page: page.execute_script(FITS))


FITS = (
    "const chart = document.querySelector('.panel .chart');"
    "return chart.clientWidth === Number(chart.querySelector('svg').getAttribute('width'))"
)


MARKED = (1, 2, 3)
"""A colour that nothing else on the page has."""


def test_print_loses_no_word_and_no_mark(browser: Any) -> None:
    """The list of trials and the licence are for the screen."""
    pypdf = pytest.importorskip("pypdf")
    resize(browser, 1280)
    color = f"rgb{MARKED}"
    style = browser.execute_script(
        "const style = document.createElement('style');"
        f"style.textContent = '.panel .mark-symbol path {{fill: {color} !important;"
        " fill-opacity: 1 !important; opacity: 1 !important; stroke: none !important}';"
        "return document.head.appendChild(style)"
    )
    num_marks, cells, labels = browser.execute_script(
        "const words = (cell) => Array.isArray(cell) ? cell[0] : cell ?? '';"
        "const marks = [...document.querySelectorAll('.panel .mark-symbol path')];"
        "return [marks.filter(mark => mark.getBBox().height).length,"  # a line has nothing to fill
        " [...document.querySelectorAll('.table:not(#trials *)')].flatMap(block =>"
        "  block.dataTable.rows().data().toArray().flatMap(row => row.map(words))),"
        " [...document.querySelectorAll('.panel svg text, .page li, .page dd')]"
        "  .map(text => text.textContent)]"
    )
    printed = browser.execute_cdp_cmd(
        "Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True}
    )["data"]
    browser.execute_script("arguments[0].remove()", style)
    pdf = pypdf.PdfReader(io.BytesIO(base64.b64decode(printed)))
    text = squeezed("".join(page.extract_text() for page in pdf.pages))
    assert num_marks > 20
    assert len(cells) > 100
    assert squeezed("The MIT License") not in text
    assert squeezed(TRIALS) not in text
    lost = [words for words in [*cells, *labels] if squeezed(words) not in text]
    assert lost == []
    assert sum(fills(pypdf, pdf, page) for page in pdf.pages) == num_marks


def squeezed(text: str) -> str:
    """Without ligatures, and the spaces and hyphens at which lines are broken."""
    return re.sub(r"[\s\u00ad]+", "", unicodedata.normalize("NFKC", text))


def fills(pypdf: Any, pdf: Any, page: Any) -> int:
    """How many paths of a page are filled with MARKED."""
    found = 0
    for content in streams(pypdf, pdf, page):
        current, stack = None, []
        for operands, operator in content.operations:
            if operator == b"q":
                stack.append(current)
            elif operator == b"Q":
                current = stack.pop() if stack else None
            elif operator == b"rg":
                current = tuple(round(255 * float(value)) for value in operands)
            elif operator in (b"f", b"f*", b"B", b"B*"):
                found += current == MARKED
    return found


def streams(pypdf: Any, pdf: Any, page: Any) -> Iterator[Any]:
    """The content of a page, and that of each form in it."""
    resources = page["/Resources"]
    yield page.get_contents()
    todo = [resources]
    while todo:
        for item in (todo.pop().get("/XObject") or {}).values():
            form = item.get_object()
            if form.get("/Subtype") == "/Form":
                yield pypdf.generic.ContentStream(form, pdf)
                todo.append(form.get("/Resources") or {})
