"""The page of a report, and what of it is the report's own."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import vl_convert

from pipegap.analysis.report.page import page as page_module
from pipegap.analysis.report.report import report

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
