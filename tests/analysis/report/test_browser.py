"""The page in a browser: no error, every chart is drawn, tables sort, a phone can read it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from analysis.report.report import report
from tests.support.synthetic_store import LOSSES, ids, record, write_arms

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium and chromedriver on the PATH"
)
SECONDS = 120


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page of a store with a record and trials of no sweep, all of its charts drawn."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

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
    try:
        driver.get((folder / "out" / "index.html").as_uri())
        drawn = "return document.body.dataset.drawn"
        WebDriverWait(driver, SECONDS).until(lambda page: page.execute_script(drawn))
        yield driver
    finally:
        driver.quit()


def resize(browser: Any, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def test_the_console_has_no_error(browser: Any) -> None:
    messages = browser.get_log("browser")
    assert not [message for message in messages if message["level"] == "SEVERE"], messages


def test_every_chart_has_marks(browser: Any) -> None:
    num_marks = browser.execute_script(
        "return [...document.querySelectorAll('.panel')].map(panel =>"
        " panel.querySelectorAll('svg [class*=mark-] > *:not(g)').length)"
    )
    assert len(num_marks) >= 4
    assert min(num_marks) > 3


def test_a_click_on_a_header_sorts_and_another_turns_it_round(browser: Any) -> None:
    table = "[...document.querySelectorAll('.table')].find(t => t.innerText.includes('Every gap'))"
    values = (
        f"return [...{table}.querySelectorAll('tbody tr')].map(row =>"
        " JSON.parse(row.cells[arguments[0]].dataset.values)[0])"
    )
    names = browser.execute_script(
        f"return [...{table}.querySelectorAll('th')].map(th => th.textContent)"
    )
    for name in ("gap", "arm", "removed"):
        column = names.index(name)
        click = f"{table}.querySelectorAll('th')[{column}].click()"
        browser.execute_script(click)
        up = browser.execute_script(values, column)
        known = [value for value in up if value is not None]
        assert known == sorted(known)
        assert up == known + [None] * (len(up) - len(known)), "what is missing comes last"
        browser.execute_script(click)
        down = [value for value in browser.execute_script(values, column) if value is not None]
        assert down == sorted(known, reverse=True)


def test_a_button_copies_a_table_as_csv_or_latex(browser: Any) -> None:
    """What was copied is pasted into a field."""
    from selenium.webdriver.common.keys import Keys

    field = browser.execute_script(
        "return document.body.appendChild(document.createElement('textarea'))"
    )
    copied = {}
    for form in ("csv", "latex"):
        browser.find_element("css selector", f".table [data-copy={form}]").click()
        WebDriverWait(browser, SECONDS).until(
            lambda page: page.find_elements("xpath", "//button[text()='copied']")
        )
        field.clear()
        field.send_keys(Keys.CONTROL, "v")
        copied[form] = field.get_property("value")
        WebDriverWait(browser, SECONDS).until(
            lambda page: not page.find_elements("xpath", "//button[text()='copied']")
        )
    browser.execute_script("arguments[0].remove()", field)
    assert copied["csv"].startswith("optimizer,")
    assert copied["latex"].startswith("\\begin{tabular}{l")
    assert all("adamw" in text for text in copied.values())
    assert "delay\\_ef" in copied["latex"]


def test_a_point_under_the_pointer_says_which_trial_it_is(browser: Any) -> None:
    from selenium.webdriver import ActionChains

    resize(browser, 1400)
    point = browser.find_element("css selector", ".panel .mark-symbol path")
    ActionChains(browser).move_to_element(point).perform()
    tooltip = WebDriverWait(browser, SECONDS).until(
        lambda page: page.find_element("css selector", "#vg-tooltip-element.visible")
    )
    print(tooltip.text)
    for said in ("trial_id", "seed", "optimizer=adamw", "optimizer.lr=", "batch_size="):
        assert said in tooltip.text


@pytest.mark.parametrize("width", [380, 800, 1400])
def test_the_page_never_scrolls_sideways(browser: Any, width: int) -> None:
    resize(browser, width)
    page, window = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert page <= window


def test_charts_fit_a_phone(browser: Any) -> None:
    resize(browser, 380)
    widths = browser.execute_async_script(
        "const done = arguments[0], width = (svg) => svg.getBoundingClientRect().width;"
        "setTimeout(() => done([...document.querySelectorAll('.chart svg')].map(width)), 500)"
    )
    assert max(widths) <= 380
    assert min(widths) > 200
