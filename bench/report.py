"""How long the report of many trials takes, how large it is, and when its first picture is there.

    python -m bench.report [trials=10000]

The store is that of bench.load, with the validation losses of each trial and a record of a sweep
of learning rates that compares them all. The picture is timed in headless Chromium, from the start
of the navigation, where chromium and chromedriver are on the PATH.
"""

import json
import random
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from analysis.report.report import report

NUM_EVALUATIONS = 4
PATIENT = 300
"""Seconds until there must be a picture."""
SWEEPS = ("learning_rate", "optimizers")


def _add_losses(store: Path) -> None:
    chance = random.Random(0)
    for folder in (store / "trials").iterdir():
        rows = [
            {
                "update": 100 * (k + 1) - 1,
                "train_loss": 2.0,
                "val_loss": 3.0 / (k + chance.random()),
            }
            for k in range(1, NUM_EVALUATIONS + 1)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _add_records(store: Path) -> None:
    names = sorted(folder.name for folder in (store / "trials").iterdir())
    planned = {"arm": "delay", "seed": 0, "tokens": 819_200, "flops": 2e12, "seconds": 50.0}
    (store / "sweeps").mkdir()
    for sweep in SWEEPS:
        record = {
            **{"sweep": sweep, "scale": "few_updates", "label": f"{sweep}-few_updates"},
            "words": [f"sweep={sweep}", "scale=few_updates"],
            **{"verdict": "", "arms": [], "seeds": [], "settled": True, "remarks": []},
            **{"compared": names, "trials": dict.fromkeys(names, planned)},
        }
        (store / "sweeps" / f"{sweep}-few_updates.json").write_text(json.dumps(record))


def main(words: list[str]) -> None:
    """Prints seconds, sizes and memory."""
    given = dict(word.split("=") for word in words)
    with tempfile.TemporaryDirectory(prefix="pipegap-bench-") as folder:
        store, out = Path(folder, "results"), Path(folder, "report")
        store.mkdir()
        from bench.load import make_store  # the workers import this module too, and need no store

        make_store(store, int(given.get("trials", 10_000)))
        _add_losses(store)
        _add_records(store)
        started, busy = time.monotonic(), time.process_time()
        report(store, out)
        seconds, busy = time.monotonic() - started, time.process_time() - busy
        size = (out / "index.html").stat().st_size
        sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
        picture = first_picture(out / "index.html")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
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
        milliseconds: float = WebDriverWait(browser, PATIENT).until(
            lambda window: window.execute_script(marked)
        )
    finally:
        browser.quit()
    return milliseconds / 1000


if __name__ == "__main__":
    main(sys.argv[1:])
