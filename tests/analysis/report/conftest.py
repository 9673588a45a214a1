"""Reports that several tests read, and none changes, and a browser that shows one."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pipegap.analysis.figures import save
from pipegap.analysis.report import contents
from pipegap.analysis.report.report import report
from tests.support.pages import FEW, Made, Opened, as_svg, headless, page, settle, with_figures
from tests.support.synthetic_store import LOSSES, config, ids, record, result, write, write_arms


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A report of two optimizers in a sweep, with the pictures of its links, and a log."""
    folder = tmp_path_factory.mktemp("recorded")
    store, out = folder / "results", folder / "out"
    write_arms(store, LOSSES)
    write_arms(store, {"sync": [1.0, 1.1], "delay": [1.1, 1.2]}, optimizer="muon")
    record(store, "main", "tiny", ids(store))
    made = {"attempt": 1, "host": "h", "pid": 7, "started_at": 0.0}
    made |= {"ended": "completed", "ended_at": 60.0}
    (store / "trials" / "0001" / "attempt-000001.json").write_text(json.dumps(made))
    with with_figures(FEW), pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "save", save)
        return Made(store, out, page(store, out))


@pytest.fixture(scope="session")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A report of two optimizers in a sweep that lacks a trial and has a diverged one."""
    folder = tmp_path_factory.mktemp("unfinished")
    store, out = folder / "results", folder / "out"
    write_arms(store, LOSSES)
    write_arms(store, {"sync": [1.0, None], "delay": [1.1, 1.2]}, optimizer="muon")
    record(store, "main", "tiny", [*ids(store), "never"], words=["sweep=main", "results=other"])
    with with_figures(FEW):
        return Made(store, out, page(store, out))


@pytest.fixture(scope="session")
def scattered(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A report of one sweep at two scales, a sweep of one's own, and a last trial of no sweep."""
    folder = tmp_path_factory.mktemp("scattered")
    store, out = folder / "results", folder / "out"
    for number, size in enumerate((8, 4, 2)):
        for arm, loss in (("sync", 1.0), ("delay", 1.5)):
            settings = config(arm) | {"batch_size": size}
            write(store, settings, result(settings, loss + number), curve=True)
    record(store, "optimizers", "tiny", ids(store)[:2])
    record(store, "optimizers", "micro", ids(store)[2:4])
    record(store, "mine", "tiny", ids(store)[4:])
    settings = config("sync", seed=7)
    write(store, settings, result(settings, 1.0), curve=True)
    with with_figures(FEW):
        return Made(store, out, page(store, out))


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A browser, and the page of a store with a record and trials of no sweep."""
    folder = tmp_path_factory.mktemp("report")
    write_arms(folder / "results", LOSSES)
    write_arms(folder / "results", {"sync": [1.0, 1.1], "delay": [1.1, None]}, optimizer="muon")
    record(folder / "results", "optimizers", "tiny", ids(folder / "results"))
    write_arms(folder / "results", LOSSES, optimizer="soap")
    with with_figures(save=as_svg):
        report(folder / "results", folder / "out")
    with headless() as driver:
        yield Opened(driver, (folder / "out" / "index.html").as_uri())


@pytest.fixture
def browser(opened: Opened) -> Any:
    """That page with all of its charts drawn, also after a test that went elsewhere."""
    if opened.browser.current_url.partition("#")[0] != opened.address:
        opened.browser.get(opened.address)
    settle(opened.browser)
    return opened.browser
