"""Trackers show what metrics.jsonl holds, and can neither change, fail nor hold up a trial."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sweeps.tracking import background, choice
from sweeps.tracking.background import Background
from sweeps.tracking.choice import Tracking
from sweeps.tracking.store_id import store_id
from sweeps.tracking.tracker import numbers
from trainer.errors import BadInput, Stopped
from trainer.plan import plan_trial
from trainer.record import Row
from trainer.trial import run_trial

KEY = "0123456789abcdef0123456789abcdef01234567"
TIMES = {"tokens_per_second", "wall_seconds"}
PATIENT = 120.0


def chosen(*words: str) -> Tracking:
    """The tracker of these words of a command line, given time enough on a busy machine."""
    given = {"tracking.wait": str(PATIENT), **dict(word.split("=", 1) for word in words)}
    found = choice.take(given, "main-micro")
    assert not given
    return found


def tracked(config: dict[str, Any], tracking: Tracking, stop_after: float = math.inf) -> Background:
    """Runs a trial as a worker does, or up to an update."""
    tracker = tracking.of(plan_trial(config).trial_id, "sync", config)
    num_rows = 0

    def report(row: Row) -> None:
        nonlocal num_rows
        num_rows += 1
        tracker.log(row)

    with tracker:
        tracker.outcome = run_trial(config, report, lambda: num_rows >= stop_after)
    return tracker


def folder(config: dict[str, Any]) -> Path:
    return Path(config["results"]) / "trials" / plan_trial(config).trial_id


def rows(config: dict[str, Any]) -> list[Row]:
    return [
        json.loads(line) for line in (folder(config) / "metrics.jsonl").read_text().splitlines()
    ]


def untimed(config: dict[str, Any]) -> list[Row]:
    return [{key: row[key] for key in row if key not in TIMES} for row in rows(config)]


def inspect(run: Path, *options: str) -> str:
    """What wandb's own reader says of an offline run."""
    command = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", *options, "--json"]
    return subprocess.run([*command, str(run)], check=True, capture_output=True, text=True).stdout


def history(run: Path) -> list[Row]:
    records = [json.loads(line) for line in inspect(run).splitlines()]
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    return [{key: of for key, of in item.items() if not key.startswith("_")} for item in items]


def runs(config: dict[str, Any]) -> list[Path]:
    return sorted(Path(config["results"]).glob("tracking/wandb/*run-*"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Rows of the trial without a tracker, times aside."""
    config = small.config(tmp_path_factory.mktemp("plain"))
    run_trial(config)
    return untimed(config)


def test_wandb_holds_what_metrics_jsonl_holds(tmp_path: Path) -> None:
    config = small.config(tmp_path, "diagnostics=3", "pipeline=pipedream_2bw")
    tracker = tracked(config, chosen("tracking=wandb", "tracking.tags=[mine]"))
    assert tracker.trouble is None
    [run] = runs(config)
    assert history(run) == [dict(numbers(row)) for row in rows(config)]
    assert "diagnostics/all/update_cosine" in history(run)[3]
    found = json.loads(inspect(run, "--summary"))
    result = json.loads((folder(config) / "result.json").read_text())
    for key in ("status", "final_val_loss", "delays", "wall_seconds"):
        assert found["summary"][key] == result[key]
    assert found["config"].pop("choice")["series"] == "adamw sync"
    assert found["config"] == json.loads((folder(config) / "config.json").read_text())
    store = store_id(Path(config["results"]))
    assert found["run_id"] == f"{store}-{folder(config).name}"
    assert found["tags"] == ["adamw", "main", "micro", "mine", "sync"]
    described = next(json.loads(line) for line in inspect(run).splitlines() if '"run":' in line)
    assert described["run"]["run_group"] == "main-micro"
    assert described["run"]["job_type"] == "sync"


def test_an_attempt_that_goes_on_goes_on_with_the_run(tmp_path: Path) -> None:
    config = small.config(tmp_path)
    with pytest.raises(Stopped):
        tracked(config, chosen("tracking=wandb"), stop_after=7)
    tracked(config, chosen("tracking=wandb"))
    first, second = (json.loads(inspect(run, "--summary")) for run in runs(config))
    assert first["run_id"] == second["run_id"]
    assert (first["summary"]["status"], second["summary"]["status"]) == ("stopped", "completed")
    updates = [row["update"] for run in runs(config) for row in history(run)]
    assert updates == [*range(12)]


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Any]:
    config = small.config(tmp_path)

    def read() -> dict[str, list[tuple[int, float]]]:
        place = tmp_path / "results/tracking/tensorboard/main-micro/sync" / folder(config).name
        found = EventAccumulator(str(place)).Reload()
        return {
            tag: [(event.step, event.value) for event in found.Scalars(tag)]
            for tag in found.Tags()["scalars"]
        }

    return config, read


def expected(config: dict[str, Any]) -> dict[str, list[tuple[int, float]]]:
    """Of each number its values by update, in TensorBoard's precision."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows(config):
        for key in row.keys() - {"update"}:
            found.setdefault(key, []).append((row["update"], float(np.float32(row[key]))))
    return found


def test_tensorboard_holds_what_metrics_jsonl_holds(events: Any) -> None:
    config, read = events
    tracker = tracked(config, chosen("tracking=tensorboard"))
    assert tracker.trouble is None
    assert read() == expected(config)


def test_tensorboard_forgets_what_an_attempt_repeats(events: Any) -> None:
    """The attempt stops, and starts anew: its checkpoints are lost."""
    config, read = events
    with pytest.raises(Stopped):
        tracked(config, chosen("tracking=tensorboard"), stop_after=7)
    for path in folder(config).glob("checkpoint*"):
        path.unlink()
    tracked(config, chosen("tracking=tensorboard"))
    assert read() == expected(config)


@pytest.mark.parametrize("name", ["none", "wandb", "tensorboard"])
def test_a_tracker_changes_no_number_and_no_random_state(
    name: str, tmp_path: Path, plain: list[Row]
) -> None:
    config = small.config(tmp_path)

    def states() -> tuple[object, ...]:
        return (
            random.getstate(),
            np.random.get_state()[1].tolist(),  # type: ignore[index, union-attr]
            torch.get_rng_state().tolist(),
        )

    before = states()
    tracked(config, chosen(f"tracking={name}"))
    assert states() == before
    assert untimed(config) == plain


def misbehaving(kind: str, where: str, wait: float) -> Tracking:
    node = {"_target_": f"trackers.{kind}", "where": where, "wait": wait}
    return choice.tracking(node, "main-micro")


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_a_tracker_that_hangs_is_left_alone(where: str, tmp_path: Path, plain: list[Row]) -> None:
    """The trial ends while the tracker still hangs, and so does the next one's tracker."""
    config = small.config(tmp_path)
    assert tracked(config, misbehaving("Hangs", where, 0.1)).trouble == (
        "it was not done 0.1 s after the trial's end"
    )
    assert untimed(config) == plain
    assert [t.name for t in threading.enumerate()].count("tracker") >= 1
    other = small.config(tmp_path, "seed=1")
    assert tracked(other, chosen("tracking=tensorboard")).trouble is None


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_a_tracker_that_raises_is_named_in_one_line(
    where: str, tmp_path: Path, plain: list[Row]
) -> None:
    config = small.config(tmp_path)
    tracker = tracked(config, misbehaving("Raises", where, PATIENT))
    assert tracker.trouble == f"SystemExit: no {where}"
    assert untimed(config) == plain


def test_rows_that_a_slow_tracker_has_no_room_for_are_counted(tmp_path: Path) -> None:
    tracker = misbehaving("Hangs", "start", 0.0).of("id", "sync", small.config(tmp_path))
    with tracker:
        for update in range(background.CAPACITY + 5):
            tracker.log({"update": update})
    assert tracker.trouble == "it is too slow: 10000 rows wait for it (5 rows were dropped)"


def test_without_a_tracker_nothing_is_made_and_nothing_is_warned_of(tmp_path: Path) -> None:
    config = small.config(tmp_path)
    assert tracked(config, choice.take({}, "main-micro")).trouble is None
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["trials"]


def test_an_attempt_without_a_row_starts_no_tracker(tmp_path: Path) -> None:
    """A finished trial is not run again, and leaves no second, empty run."""
    config = small.config(tmp_path)
    tracked(config, chosen("tracking=wandb"))
    tracked(config, chosen("tracking=wandb"))
    assert len(runs(config)) == 1


ALONE = """
import json, sys
sys.path[:0] = ["tests", "."]
from test_tracking import chosen, tracked
print(tracked(json.load(sys.stdin), chosen("tracking=wandb", *sys.argv[1:])).trouble)
"""


def without_network(folder: Path) -> dict[str, str]:
    """An environment with a key, and nobody who listens where wandb's server should be."""
    changes = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": "http://127.0.0.1:9", "HOME": str(folder)}
    return {**os.environ, **changes}


def require_no_key(folder: Path, output: str) -> None:
    """In no file below the folder, and not in the output."""
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
    assert KEY not in output


@pytest.mark.parametrize(
    ("wait", "says"), [(PATIENT, "CommError"), (0.0, "not done 0 s after the trial's end")]
)
def test_a_bad_key_without_network_neither_fails_the_trial_nor_keeps_its_process(
    wait: float, says: str, tmp_path: Path, plain: list[Row]
) -> None:
    config = small.config(tmp_path)
    words = ["tracking.mode=online", f"tracking.wait={wait}", "tracking.init_timeout=1"]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *words],
        input=json.dumps(config),
        env=without_network(tmp_path / "home"),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert says in done.stdout
    assert untimed(config) == plain
    require_no_key(tmp_path, done.stdout + done.stderr)


def test_a_sweep_whose_tracker_fails_says_so_once_and_is_as_without(tmp_path: Path) -> None:
    words = ["sweep=momentum", "scale=micro", "seeds=[0]"]
    words += ["grid.optimizer=[adamw]", "grid.optimizer.momentum=[0.9]", "tracking=wandb"]
    words += ["tracking.mode=online", "tracking.init_timeout=1", f"tracking.wait={PATIENT}"]
    words += small.overrides(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "sweeps", *words],
        env=without_network(tmp_path / "home"),
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, last = [
        line for line in done.stderr.splitlines() if line.startswith("warning: tracking")
    ]
    assert "CommError" in first
    assert "2 of 2 trials are not wholly tracked" in last
    require_no_key(tmp_path, done.stdout + done.stderr)
    assert len(runs({"results": tmp_path / "results"})) == 2
    for place in (tmp_path / "results/trials").iterdir():
        config = json.loads((place / "config.json").read_text())
        shown = untimed(config)
        (place / "result.json").unlink()
        run_trial(config)
        assert untimed(config) == shown


def test_one_of_many_drivers_names_the_store(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(store_id, [tmp_path] * 64))
    assert len(found) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["store_id"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("tracking=nowhere", "tracking=nowhere: must be one of none, tensorboard, wandb"),
        ("tracking.nowhere=1", "tracking.nowhere=1: .* project"),
        ("tracking.mode=shared", "tracking.mode=shared"),
        ("tracking.project=", "tracking.project"),
        ("tracking.project=[", "tracking.project"),
        ("tracking.tags=one", "tracking.tags=one"),
        ("tracking.init_timeout=0", "tracking.init_timeout=0"),
        ("tracking.wait=-1", "tracking.wait=-1"),
        ("tracking.wait=soon", "tracking.wait=soon"),
    ],
)
def test_a_bad_word_is_refused(word: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        chosen("tracking=wandb", word) if word.partition("=")[0] != "tracking" else chosen(word)
