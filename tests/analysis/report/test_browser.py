"""The page in a browser: no message, pictures and charts, every width, print."""

import base64
import io
import re
import unicodedata
from typing import Any

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from pipegap.analysis.report.report import TRIALS
from tests.support.pages import Opened, needs_browser, resize, wait, wait_for_trial

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


# A reader sorts, searches and copies in a browser, and opens trials.

TABLE = "[...document.querySelectorAll('.table')].find(t => t.innerText.includes('Every gap'))"


def test_a_click_on_a_header_sorts_and_another_turns_it_round(browser: Any) -> None:
    values = (
        f"return {TABLE}.dataTable.rows({{order: 'applied'}}).data().toArray()"
        ".map(row => Array.isArray(row[arguments[0]]) ? row[arguments[0]][1] : row[arguments[0]])"
    )
    names = browser.execute_script(f"return {TABLE}.heads.map(head => head.title)")
    for name in ("gap", "arm", "gap removed"):
        column = names.index(name)
        click = (
            f"const done = arguments[0], table = {TABLE};"
            "table.dataTable.one('draw', () => setTimeout(done));"
            f"table.querySelectorAll('th')[{column}].click()"
        )
        browser.execute_async_script(click)
        up = browser.execute_script(values, column)
        known = [value for value in up if value is not None]
        assert known == sorted(known)
        assert up == known + [None] * (len(up) - len(known)), "what is missing comes last"
        browser.execute_async_script(click)
        down = [value for value in browser.execute_script(values, column) if value is not None]
        assert down == sorted(known, reverse=True)


def test_a_table_is_searched_has_pages_and_hides_columns(browser: Any) -> None:
    def shown() -> list[str]:
        script = "return [...document.querySelectorAll('#trials tbody tr')].map(r => r.innerText)"
        return list(browser.execute_script(script))

    assert len(shown()) == 15, "a page"
    search = browser.find_element("css selector", "#trials input[type=search]")
    search.send_keys("muon")
    assert len(shown()) == 4
    assert all("Muon" in row for row in shown())
    search.clear()
    search.send_keys(" ")
    browser.execute_script("document.querySelector('#trials button.buttons-collection').click()")
    column = browser.find_element(
        "xpath", "//button[contains(@class, 'columnVisibility')][contains(., 'status')]"
    )
    browser.execute_script("arguments[0].click()", column)
    assert not any("completed" in row for row in shown())
    browser.execute_script("arguments[0].click()", column)
    browser.execute_script("document.querySelector('.dt-button-background')?.click()")
    # It fades away, and until then it lies over the page and takes what is clicked there.
    cover = ".dt-button-background"
    wait(browser).until_not(lambda page: page.find_elements("css selector", cover))
    assert any("completed" in row for row in shown())


def test_a_button_copies_a_table_as_csv(browser: Any) -> None:
    """What was copied is pasted into a field."""
    field = browser.execute_script(
        "return document.body.appendChild(document.createElement('textarea'))"
    )
    # A real click: a page may write to the clipboard only after a gesture of its reader.
    button = browser.execute_script(f"return {TABLE}.querySelector('[data-copy]')")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    ActionChains(browser).click(button).perform()
    copied = "//button[text()='copied']"
    wait(browser).until(lambda page: page.find_elements("xpath", copied))
    field.send_keys(Keys.CONTROL, "v")
    pasted = wait(browser).until(lambda page: field.get_property("value"))
    lines = pasted.splitlines()
    browser.execute_script("arguments[0].remove()", field)
    names, *rows = [line.split(",") for line in lines]
    column = names.index("gap")
    known = browser.execute_script(
        f"return {TABLE}.dataTable.rows().data().toArray().map(row => row.find("
        f"(cell, at) => {TABLE}.heads[at].title === 'gap')[1])"
    )
    assert sorted(float(row[column]) for row in rows if row[column]) == pytest.approx(
        sorted(value for value in known if value is not None)
    )


def test_the_keyboard_opens_a_trial_and_closes_it(browser: Any) -> None:
    opener = browser.find_element("css selector", "#trials button.trial")
    trial_id = opener.text
    opener.send_keys(Keys.ENTER)
    shown = wait_for_trial(browser)
    assert f"Trial {trial_id}" in shown.text
    for said in ("optimizer.lr", "0.004", "rerun", f"trial_id={trial_id}", "Log", "batch_size"):
        assert said in shown.text
    marks = "return document.querySelectorAll('dialog .mark-symbol path').length"
    assert browser.execute_script(marks) == 100 + 4 + 2  # of 400 updates, all evaluations, legend
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not browser.find_elements("css selector", "dialog[open]")
    assert browser.switch_to.active_element == opener, "where the reader was"


OF_A_SEED = """
return [...document.querySelectorAll('.panel .mark-symbol path')].find(path => {
  if (!path.__data__?.datum?.trial_id) return false;
  path.scrollIntoView({block: 'center'});
  const {x, y, width, height} = path.getBoundingClientRect();
  return document.elementFromPoint(x + width / 2, y + height / 2) === path;
})
"""
"""The first point of a single trial, not of a mean, that nothing lies on."""


def click_a_point(browser: Any) -> str:
    """The id of its trial."""
    point = browser.execute_script(OF_A_SEED)
    trial_id: str = browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center'});"
        "const {x, y, width, height} = arguments[0].getBoundingClientRect();"
        "const top = document.elementFromPoint(x + width / 2, y + height / 2);"
        "return top.__data__.datum.trial_id",  # another point may lie on this one
        point,
    )
    ActionChains(browser).move_to_element(point).click().perform()
    return trial_id


def test_a_click_on_a_point_opens_its_trial(browser: Any) -> None:
    """A click that comes while the page is still laid out anew is made again."""
    resize(browser, 1400)
    clicked: list[str] = []

    def is_open(page: Any) -> Any:
        if not page.find_elements("css selector", "dialog[open]"):
            clicked.append(click_a_point(page))
        return page.find_elements("css selector", "dialog[open][data-drawn]")

    wait(browser).until(is_open)
    assert browser.find_element("id", "trial-title").text == f"Trial {clicked[-1]}"
    browser.execute_script("document.getElementById('trial').close()")
