"""How long the report of many trials takes, how large it is, and when its first picture is there.

    python -m bench.report [trials=10000]

The store has as many configs and results as a grid of optimizers, learning rates, arms and seeds,
of which some diverged, failed or are not finished, with their validation losses, and records of two
sweeps that compare them all. The picture is timed in headless Chromium, from the start of the
navigation, where chromium and chromedriver are on the PATH.
"""

import random
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import count, islice, product
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from bench.timing import options
from pipegap.analysis.report.report import report
from pipegap.trainer.base.errors import ENDED, Status
from tests.support.synthetic_store import ARMS, config, record, result, write_in

SWEEPS = ("learning_rate", "optimizers")
OPTIMIZERS = ("adamw", "muon", "soap", "adan", "lion")
LEARNING_RATES = 100


def _configs() -> Iterator[dict[str, Any]]:
    for seed in count():
        for step, optimizer, arm in product(range(LEARNING_RATES), OPTIMIZERS, ARMS):
            settings = config(arm, optimizer=optimizer, seed=seed)
            settings["optimizer"]["lr"] = 0.001 * 1.05**step
            yield settings


def make_store(store: Path, num_trials: int) -> None:
    """Configs, results and losses of so many trials, and records of sweeps that compare them."""
    chance = random.Random(0)
    names = [f"{number:016d}" for number in range(num_trials)]
    for name, settings in zip(names, islice(_configs(), num_trials), strict=True):
        status = chance.choices(ENDED, [94, 4, 2])[0]
        loss = chance.gauss(2.0, 0.1) if status == Status.COMPLETED else None
        outcome = {**result(settings, loss), "status": status}
        if status == Status.FAILED:
            outcome["error"] = "Traceback (most recent call last):\n" + "  File …\n" * 20
        is_done = chance.random() < 0.97
        write_in(store / "trials" / name, settings, outcome if is_done else None, curve=True)
    for sweep in SWEEPS:
        record(store, sweep, "few_updates", names)


def main() -> None:
    """Prints seconds, sizes and memory."""
    num_trials = options(trials=10_000).trials
    with tempfile.TemporaryDirectory(prefix="pipegap-bench-") as folder:
        store, out = Path(folder, "results"), Path(folder, "report")
        make_store(store, num_trials)
        # Beside the clock, since other processes may make it wait.
        started, busy = time.monotonic(), time.process_time()
        report(store, out)
        seconds, busy = time.monotonic() - started, time.process_time() - busy
        size = (out / "index.html").stat().st_size
        sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
        picture = first_picture(out / "index.html")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    print(
        f"{seconds:.1f} s, {busy:.1f} s of CPU: index.html {size / 1e6:.2f} MB; "
        f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB"
    )
    print(f"peak memory of the process {memory / 1e9:.2f} GB")
    print(f"first picture after {picture:.2f} s" if picture else "no chromium: no picture")


def first_picture(page: Path) -> float | None:
    """Seconds from the start of the navigation until the first chart of the page is drawn; None
    without Chromium."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        browser.get(page.as_uri())
        marked = "return performance.getEntriesByName('first picture')[0]?.startTime"
        milliseconds: float = WebDriverWait(browser, 300).until(
            lambda window: window.execute_script(marked)  # script.js marks the first picture
        )
    finally:
        browser.quit()
    return milliseconds / 1000


if __name__ == "__main__":
    main()
