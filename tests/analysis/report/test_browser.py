"""The page in a browser: no message, charts, tables, a trial's drawer, print, phones, live."""

import base64
import io
import re
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from analysis.report import live
from analysis.report.live import LiveReport, PageServer
from analysis.report.report import TRIALS, report
from tests.support.reports import as_svg, with_figures
from tests.support.synthetic_store import LOSSES, config, ids, record, result, write, write_arms

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium and chromedriver on the PATH"
)
SECONDS = 120


class Opened(NamedTuple):
    browser: Any
    address: str


@pytest.fixture(scope="module", autouse=True)
def no_files() -> Iterator[None]:
    """Of the files only pictures are there, which stand in for charts."""
    with with_figures(save=as_svg):
        yield


@pytest.fixture(scope="module")
def opened(no_files: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The page of a store with a record and trials of no sweep."""
    folder = tmp_path_factory.mktemp("report")
    write_arms(folder / "results", LOSSES)
    write_arms(folder / "results", {"sync": [1.0, 1.1], "delay": [1.1, None]}, optimizer="muon")
    record(folder / "results", "optimizers", "tiny", ids(folder / "results"))
    write_arms(folder / "results", LOSSES, optimizer="soap")
    report(folder / "results", folder / "out")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(SECONDS)
    try:
        yield Opened(driver, (folder / "out" / "index.html").as_uri())
    finally:
        driver.quit()


@pytest.fixture
def browser(opened: Opened) -> Any:
    """That page with all of its charts drawn, also after a test that went elsewhere."""
    if opened.browser.current_url.partition("#")[0] != opened.address:
        opened.browser.get(opened.address)
    settle(opened.browser)
    return opened.browser


def settle(browser: Any) -> None:
    """Waits until all charts and tables are there."""
    done = "return document.body.dataset.drawn && document.body.dataset.tables"
    wait(browser).until(lambda page: page.execute_script(done))


def wait(browser: Any) -> WebDriverWait[Any]:
    """Also while parts of the page are drawn anew."""
    return WebDriverWait(browser, SECONDS, ignored_exceptions=[StaleElementReferenceException])


def wait_for_trial(browser: Any) -> Any:
    """The dialog, once a trial is open in it and its chart drawn."""
    opened = "dialog[open][data-drawn]"
    return wait(browser).until(lambda page: page.find_element("css selector", opened))


def resize(browser: Any, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


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


TABLE = "[...document.querySelectorAll('.table')].find(t => t.innerText.includes('Every gap'))"


def test_a_click_on_a_header_sorts_and_another_turns_it_round(browser: Any) -> None:
    values = (
        f"return {TABLE}.dataTable.rows({{order: 'applied'}}).data().toArray()"
        ".map(row => Array.isArray(row[arguments[0]]) ? row[arguments[0]][1] : row[arguments[0]])"
    )
    names = browser.execute_script(f"return {TABLE}.heads.map(head => head.title)")
    for name in ("gap", "arm", "removed"):
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


def test_a_point_under_the_pointer_says_which_trial_it_is(browser: Any) -> None:
    resize(browser, 1400)
    told = wait(browser).until(told_at_a_seed)
    for said in ("trial_id", "seed"):
        assert said in told


def told_at_a_seed(browser: Any) -> str:
    """What the page says once the pointer is on a point; empty if a chart that is drawn anew for
    another width took the point away meanwhile."""
    point = browser.execute_script(OF_A_SEED)
    if point is None:
        return ""
    beside = ActionChains(browser).move_to_element_with_offset(point, 40, 40)
    beside.move_to_element(point).perform()
    tooltips = browser.find_elements("css selector", "#vg-tooltip-element.visible")
    return str(tooltips[0].text) if tooltips else ""


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
        " [...document.querySelectorAll('.table.block:not(#trials *)')].flatMap(block =>"
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


def test_a_live_page_loads_a_new_report_with_the_reader_where_they_were(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the reader opened, searched and scrolled to stays, and so does an open trial. Without a
    new report the page stays as it is."""
    monkeypatch.setattr(live, "SHARE", 1.0)  # no pause between two reports
    store = tmp_path / "results"
    write_arms(store, LOSSES)
    record(store, "optimizers", "tiny", ids(store))
    report = LiveReport(store, tmp_path / "place")
    report.look()
    with PageServer(report, 0) as server, server.serving():
        resize(browser, 1280)
        browser.get(server.address)
        settle(browser)
        browser.execute_script(
            "document.mine = true;"
            "document.querySelector('#verdict-list details').open = true;"
            "document.querySelector('#table-provenance').dataTable.search('delay').draw();"
            "document.getElementById('missing').scrollIntoView();"
        )
        browser.execute_script("document.querySelector('#trials button.trial').click()")
        wait_for_trial(browser)
        place = "return document.getElementById('missing').getBoundingClientRect().top"
        before = browser.execute_script(place)
        looks = "return performance.getEntriesByType('resource').filter(e => /now$/.test(e.name))"
        wait(browser).until(lambda page: len(page.execute_script(looks)) > 2)
        assert browser.execute_script("return document.mine"), "nothing changed"
        more = config("delay", seed=7)
        write(store, more, result(more, 2.4), curve=True)
        report.look()
        wait(browser).until(lambda page: "10 trials" in page.find_element("id", "made").text)
        settle(browser)
        wait_for_trial(browser)
        kept = browser.execute_script(
            "return [document.mine, document.querySelector('#verdict-list details').open,"
            " document.querySelector('#table-provenance').dataTable.search(),"
            " document.querySelectorAll('#trials tbody tr').length]"
        )
        assert kept == [None, True, "delay", 7]
        assert browser.execute_script(place) == pytest.approx(before, abs=2)
        assert browser.get_log("browser") == []
