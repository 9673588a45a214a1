"""The page of a report, and what of it is the report's own."""

import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import vl_convert
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from pipegap.analysis.figures import FIGURES, Plot
from pipegap.analysis.figures.figure import picture, whole
from pipegap.analysis.report import contents
from pipegap.analysis.report.page import page as page_module
from pipegap.analysis.report.report import report
from pipegap.trainer.base.children import Worker

VENDOR = Path(page_module.__file__).parent / "vendor"


def own(text: str) -> str:
    """A page without what others wrote."""
    for library in (charts(), *vendored()):
        text = text.replace(library, "")
    return text.replace("http://datatables.net", "")  # in its licence


@cache
def charts() -> str:
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def vendored() -> list[str]:
    return [path.read_text() for path in sorted(VENDOR.iterdir())]


def page(store: Path, out: Path, label: str | None = None) -> str:
    report(store, out, label)
    return (out / "index.html").read_text()


class Made(NamedTuple):
    """A report that several tests read, and none changes."""

    store: Path
    out: Path
    text: str


# The page of a report in a browser that no one sees.

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


# Reports in less time: with some of the figures, and without pictures that no test looks at.

ALL = frozenset(figure.name for figure in FIGURES)
FEW = ("final_losses", "validation_curves", "fig03_curves")


def as_csv(plot: Plot, out: Path) -> None:
    """Of the files of a figure its data alone: the page has a picture all the same."""
    plot.data.to_csv(out / f"{plot.figure.name}.csv", index=False)


def as_svg(plot: Plot, out: Path) -> None:
    """The picture is drawn, and not converted to every kind of file."""
    as_csv(plot, out)
    (out / f"{plot.figure.name}.svg").write_text(picture(whole(plot)))


@contextmanager
def with_figures(
    names: Collection[str] = ALL, save: Callable[[Plot, Path], None] = as_csv
) -> Iterator[None]:
    """Reports that this process makes have the figures of these `names`, in files that `save`
    writes."""

    def save_at_once(plot: Plot, out: Path, _: Worker) -> None:
        save(plot, out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "FIGURES", [one for one in FIGURES if one.name in names])
        patch.setattr(contents, "save", save_at_once)
        yield
