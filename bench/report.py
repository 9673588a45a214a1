"""How long the report of many trials takes, how large it is, and when its first picture is there.

    python -m bench.report [trials=10000]

The store has as many configs and results as a grid of optimizers, learning rates, arms and seeds,
of which some diverged, failed or are not finished, with their validation losses, and records of two
sweeps that compare them all. The picture is timed in headless Chromium, from the start of the
navigation, where chromium and chromedriver are on the PATH.
"""

import hashlib
import json
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from pipegap.analysis.report.report import report
from pipegap.trainer.base.status import ENDED, Status

NUM_EVALUATIONS = 4
PATIENT = 300
"""Seconds until there must be a picture."""
SWEEPS = ("learning_rate", "optimizers")
OPTIMIZERS = ("adamw", "muon", "soap", "adan", "lion")
ARMS = {
    "sync": ["pipeline=sync"],
    "delay": ["pipeline=pipedream_2bw"],
    "delay_ef": ["pipeline=pipedream_2bw", "correction=error_feedback"],
}
LEARNING_RATES = 100


def _configs() -> Iterator[dict[str, Any]]:
    from pipegap.trainer.config.compose import compose  # the workers import this module too

    composed = [
        compose([f"optimizer={optimizer}", *arm])
        for optimizer, arm in product(OPTIMIZERS, ARMS.values())
    ]
    for seed, step, config in product(range(10**6), range(LEARNING_RATES), composed):
        optimizer = {**config["optimizer"], "lr": 0.001 * 1.05**step}
        yield {**config, "optimizer": optimizer, "seed": seed}


def _result(trial_id: str, config: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    status = chance.choices(ENDED, [94, 4, 2])[0]
    made = {
        "trial_id": trial_id,
        "data_hash": "d" * 64,
        "trainer_version": 2,
        "git": "0" * 40,
        "versions": {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.4"},
        "device_name": "AMD EPYC",
        "status": status,
        "final_val_loss": chance.gauss(2.0, 0.1) if status == Status.COMPLETED else None,
        "diverged_at": 17 if status == Status.DIVERGED else None,
        "seed": config["seed"],
        "num_updates": 400,
        "num_parameters": 450_000,
    }
    if status == Status.FAILED:
        return {**made, "error": "Traceback (most recent call last):\n" + "  File …\n" * 20}
    return {
        **made,
        "tokens": 819_200,
        "epochs": 0.17,
        "wall_seconds": chance.uniform(40, 60),
        "tokens_per_second": chance.uniform(15_000, 20_000),
        "delays": [0] if config["pipeline"]["_target_"].endswith("sync") else [1],
        "layers_by_stage": [4],
        "peak_memory_bytes": 10**9,
    }


def make_trials(store: Path, num_trials: int) -> None:
    """Configs, results and losses of so many trials."""
    chance = random.Random(0)
    for config in islice(_configs(), num_trials):
        content = json.dumps(config, indent=1)
        trial_id = hashlib.sha256(content.encode()).hexdigest()[:16]
        folder = store / "trials" / trial_id
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(content)
        if chance.random() < 0.97:
            result = json.dumps(_result(trial_id, config, chance), indent=1)
            (folder / "result.json").write_text(result)
        losses = (3.0 / (k + chance.random()) for k in range(1, NUM_EVALUATIONS + 1))
        rows = (
            {"update": 100 * k + 199, "train_loss": 2.0, "val_loss": loss}
            for k, loss in enumerate(losses)
        )
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
        make_trials(store, int(given.get("trials", 10_000)))
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
