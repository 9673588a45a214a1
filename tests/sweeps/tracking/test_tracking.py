"""Trackers show what metrics.jsonl holds, and can neither change, fail nor hold up a trial."""

import glob
import json
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.io_wrapper import GetLogdirSubdirectories
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from pipegap.sweeps.tracking import choice
from pipegap.sweeps.tracking.tracker import numbers
from pipegap.sweeps.tracking.wandb_tracker import read_store_id
from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.base.places import CONF
from pipegap.trainer.folder.result import Row
from tests.support import small
from tests.support.tracked import chosen, folder, plain, rows, runs, tracked, untimed


def inspect(run: Path, *options: str) -> str:
    """What wandb's own reader says of an offline run."""
    command = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", *options, "--json"]
    return subprocess.run([*command, str(run)], check=True, capture_output=True, text=True).stdout


def history(records: str) -> list[Row]:
    """The rows that a run's records hold."""
    lines = [json.loads(line) for line in records.splitlines()]
    items = [line["history"]["item"] for line in lines if line["type"] == "history"]
    return [{key: item[key] for key in item if not key.startswith("_")} for item in items]


def test_wandb_holds_what_metrics_jsonl_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc123")  # of an agent in whose shell the sweep began
    config = small.config(tmp_path, "diagnostics=3", "pipeline=pipedream_2bw")
    both = ("main-micro", "momentum-micro")
    tracker = tracked(config, chosen("tracking=wandb", "tracking.tags=[mine]"), sweeps=both)
    assert tracker.trouble is None
    [run] = runs(config)
    records = inspect(run)
    said = chosen("tracking=wandb").note(Path(config["results"])) or ""
    pattern = re.findall(r"`wandb sync (\S+)`", said)[0]
    assert glob.glob(pattern) == [str(run if run.is_dir() else run.parent)]
    assert not chosen("tracking=wandb", "tracking.mode=online").note(tmp_path)
    assert history(records) == [dict(numbers(row)) for row in rows(config)]
    assert "diagnostics/all/update_cosine" in history(records)[3]
    run_record = json.loads(inspect(run, "--summary"))
    result = json.loads((folder(config) / "result.json").read_text())
    for key in ("status", "final_val_loss", "delays", "wall_seconds"):
        assert run_record["summary"][key] == result[key]
    assert run_record["config"].pop("choice")["series"] == "adamw sync"
    assert run_record["config"] == json.loads((folder(config) / "config.json").read_text())
    store = read_store_id(Path(config["results"]))
    assert run_record["run_id"] == f"{store}-{folder(config).name}"
    assert run_record["tags"] == ["adamw", "main-micro", "mine", "momentum-micro", "sync"]
    described = next(json.loads(line) for line in records.splitlines() if '"run":' in line)
    assert described["run"]["run_group"] == "main-micro"
    assert described["run"]["job_type"] == "sync"
    assert described["run"]["display_name"] == "adamw clip_norm=1 sync seed 0"


def test_an_attempt_that_goes_on_goes_on_with_the_run(tmp_path: Path) -> None:
    """A finished trial is not run again, and leaves no empty run."""
    config = small.config(tmp_path)
    with pytest.raises(Stopped):
        tracked(config, chosen("tracking=wandb"), stop_after=7)
    tracked(config, chosen("tracking=wandb"))
    tracked(config, chosen("tracking=wandb"))
    first, second = (json.loads(inspect(run, "--summary")) for run in runs(config))
    assert first["run_id"] == second["run_id"]
    assert (first["summary"]["status"], second["summary"]["status"]) == ("stopped", "completed")
    updates = [row["update"] for run in runs(config) for row in history(inspect(run))]
    assert updates == [*range(12)]


def named(config: dict[str, Any]) -> str:
    """The folder of the run: optimizer, setting, arm, seed and id."""
    return f"adamw-clip_norm=1-sync-seed-0-{folder(config).name}"


def test_tensorboard_holds_what_metrics_jsonl_holds(tmp_path: Path) -> None:
    """Rows that the second attempt repeats, since its checkpoints are lost, are forgotten."""
    config = small.config(tmp_path)
    with pytest.raises(Stopped):
        tracked(config, chosen("tracking=tensorboard"), stop_after=7)
    for path in folder(config).glob("checkpoint*"):
        path.unlink()
    assert tracked(config, chosen("tracking=tensorboard")).trouble is None
    place = tmp_path / "results/tracking/tensorboard/main-micro" / named(config)
    events = EventAccumulator(str(place)).Reload()
    shown = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in rows(config):
        for key in row.keys() - {"update"}:  # in TensorBoard's precision
            expected.setdefault(key, []).append((row["update"], float(np.float32(row[key]))))
    assert shown == expected


def test_each_sweep_of_a_trial_has_it_in_its_folder_of_tensorboard(tmp_path: Path) -> None:
    """Also for TensorBoard, which looks for event files below the folder that it is given."""
    config = small.config(tmp_path)
    sweeps = ("main-micro", "momentum-micro")
    for _ in range(2):  # the second attempt finds the link of the first
        with pytest.raises(Stopped):
            tracked(config, chosen("tracking=tensorboard"), stop_after=7, sweeps=sweeps)
        for path in folder(config).glob("checkpoint*"):
            path.unlink()
    place = tmp_path / "results/tracking/tensorboard"
    shown = {Path(run).relative_to(place) for run in GetLogdirSubdirectories(str(place))}
    assert shown == {Path(sweep, named(config)) for sweep in sweeps}


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_names_are_cut_to_what_trackers_and_file_systems_take(name: str, tmp_path: Path) -> None:
    config = small.config(tmp_path)
    chosen_one = chosen(f"tracking={name}", f"tracking.dir={name}")
    arm, setting = "λ" * 70, "η=1" * 100
    tracker = tracked(config, chosen_one, sweeps=["m" * 64], arm=arm, setting=setting)
    assert tracker.trouble is None
    if name == "wandb":
        [run] = (tmp_path / "results" / name).rglob("*.wandb")
        assert {"adamw", "m" * 64} < {*(tags := json.loads(inspect(run, "--summary"))["tags"])}
        assert max(map(len, tags)) == 64


def test_tensorboard_shows_hyperparameters(tmp_path: Path) -> None:
    config = small.config(tmp_path, "optimizer.lr=0.03", "pipeline=pipedream_2bw")
    tracked(config, chosen("tracking=tensorboard"))
    place = tmp_path / "results/tracking/tensorboard/main-micro" / named(config)
    events = EventAccumulator(str(place)).Reload()
    content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    shown = HParamsPluginData.FromString(content).session_start_info.hparams
    assert shown["optimizer"].string_value == "adamw"
    assert shown["pipeline"].string_value == "pipedream_2bw"
    assert shown["arm"].string_value == "sync"
    assert shown["optimizer.lr"].number_value == 0.03
    assert shown["seed"].number_value == 0
    experiment = events.PluginTagToContent("hparams")["_hparams_/experiment"]
    metrics = HParamsPluginData.FromString(experiment).experiment.metric_infos
    assert {metric.name.tag for metric in metrics} == {"val_loss", "train_loss"}
    assert {"val_loss", "train_loss"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONF / "tracking").glob("*.yaml")))
def test_a_tracker_changes_no_number_and_no_random_state(name: str, tmp_path: Path) -> None:
    """Whether its library is installed or not."""
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
    assert untimed(config) == plain()


def test_without_a_tracker_nothing_is_made_and_nothing_is_warned_of(tmp_path: Path) -> None:
    config = small.config(tmp_path)
    assert tracked(config, choice.take({})).trouble is None
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["trials"]


def test_one_of_many_drivers_names_the_store(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        names = set(pool.map(read_store_id, [tmp_path] * 64))
    assert len(names) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["store_id"]
