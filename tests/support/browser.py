"""The page of a report in a browser that no one sees."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

SECONDS = 120


needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium and chromedriver on the PATH"
)


class Opened(NamedTuple):
    browser: Any
    address: str


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


@contextmanager
def headless() -> Iterator[Any]:
    """A browser without a window, which keeps what the console says."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(SECONDS)
    try:
        yield driver
    finally:
        driver.quit()
