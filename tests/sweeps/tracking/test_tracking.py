"""Trackers show what metrics.jsonl holds, and can neither change, fail nor hold up a trial."""

import glob
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.io_wrapper import GetLogdirSubdirectories
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.tracking import tracker, trackio_tracker
from pipegap.sweeps.tracking.tracker import About, Tracking, numbers
from pipegap.sweeps.tracking.wandb_tracker import read_store_id
from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.base.places import CONF
from pipegap.trainer.folder.wellformed import Row
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep, trials
from tests.support.markdown import ROOT
from tests.support.processes import Refused, python
from tests.support.tracked import PATIENT, chosen, folder, plain, rows, runs, tracked, untimed


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
    config = small_sweep.config(tmp_path, "diagnostics=3", "pipeline=pipedream_2bw")
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
    config = small_sweep.config(tmp_path)
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
    config = small_sweep.config(tmp_path)
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
    config = small_sweep.config(tmp_path)
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
    config = small_sweep.config(tmp_path)
    chosen_one = chosen(f"tracking={name}", f"tracking.dir={name}")
    arm, setting = "λ" * 70, "η=1" * 100
    tracker = tracked(config, chosen_one, sweeps=["m" * 64], arm=arm, setting=setting)
    assert tracker.trouble is None
    if name == "wandb":
        [run] = (tmp_path / "results" / name).rglob("*.wandb")
        assert {"adamw", "m" * 64} < {*(tags := json.loads(inspect(run, "--summary"))["tags"])}
        assert max(map(len, tags)) == 64


def test_tensorboard_shows_hyperparameters(tmp_path: Path) -> None:
    config = small_sweep.config(tmp_path, "optimizer.lr=0.03", "pipeline=pipedream_2bw")
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
    config = small_sweep.config(tmp_path)

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
    config = small_sweep.config(tmp_path)
    assert tracked(config, tracker.take({})).trouble is None
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["trials"]


def test_one_of_many_drivers_names_the_store(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        names = set(pool.map(read_store_id, [tmp_path] * 64))
    assert len(names) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["store_id"]


# A tracker that hangs, raises, is slow or has a bad key changes and holds up nothing.

KEY = "0123456789abcdef0123456789abcdef01234567"


def misbehaving(kind: str, where: str, wait: float) -> Tracking:
    node = {"_target_": f"tests.support.tracked.{kind}", "where": where, "wait": wait}
    return tracker.make_tracking(node)


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_a_tracker_that_hangs_is_left_alone(where: str, tmp_path: Path) -> None:
    """The trial ends while the tracker still hangs, and so does the next one's tracker."""
    config = small_sweep.config(tmp_path)
    assert tracked(config, misbehaving("Hangs", where, 0.1)).trouble == (
        "it was not done 0.1 s after the trial's end"
    )
    assert untimed(config) == plain()
    assert [t.name for t in threading.enumerate()].count("tracker") >= 1
    if where != "log":
        return
    other = small_sweep.config(tmp_path, "seed=1")
    assert tracked(other, chosen("tracking=tensorboard")).trouble is None


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_a_tracker_that_raises_is_named_in_one_line(where: str, tmp_path: Path) -> None:
    config = small_sweep.config(tmp_path)
    tracker = tracked(config, misbehaving("Raises", where, PATIENT))
    assert tracker.trouble == f"SystemExit: no {where}"
    assert untimed(config) == plain()


def test_rows_that_a_slow_tracker_has_no_room_for_are_counted(tmp_path: Path) -> None:
    config = small_sweep.config(tmp_path)
    background = misbehaving("Hangs", "start", 0.0).of("id", "sync", config, sweeps=["main-micro"])
    with background:
        for update in range(tracker.CAPACITY + 5):
            background.log({"update": update})
    assert background.trouble == "it is too slow: 10000 rows wait for it (5 rows were dropped)"


ALONE = """
import json, sys
sys.path[:0] = ["."]
from tests.support.tracked import chosen, tracked
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
    ("wait", "says"),
    [
        (PATIENT, "CommError"),
        pytest.param(0.0, "not done 0 s after the trial's end", marks=pytest.mark.slow),
    ],
)
def test_a_bad_key_without_network_neither_fails_the_trial_nor_keeps_its_process(
    wait: float, says: str, tmp_path: Path
) -> None:
    config = small_sweep.config(tmp_path)
    words = ["tracking.mode=online", f"tracking.wait={wait}", "tracking.init_timeout=1"]
    environment = without_network(tmp_path / "home")
    done = python("-c", ALONE, *words, input=json.dumps(config), env=environment, timeout=PATIENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert says in done.stdout
    assert untimed(config) == plain()
    require_no_key(tmp_path, done.stdout + done.stderr)


@pytest.mark.slow
def test_a_sweep_whose_tracker_fails_says_so_once_and_is_as_without(tmp_path: Path) -> None:
    words = ["sweep=momentum", "scale=micro", "seeds=[0]"]
    words += ["grid.optimizer=[adamw]", "grid.optimizer.momentum=[0.9]", "tracking=wandb"]
    words += ["tracking.mode=online", "tracking.init_timeout=1", f"tracking.wait={PATIENT}"]
    words += small_sweep.overrides(tmp_path)
    done = python("-m", "pipegap", "sweep", *words, env=without_network(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    first, last = [
        line for line in done.stderr.splitlines() if line.startswith("warning: tracking")
    ]
    assert "CommError" in first
    assert "2 of 2 trials are not tracked completely" in last
    require_no_key(tmp_path, done.stdout + done.stderr)
    assert len(runs({"results": tmp_path / "results"})) == 2
    for place in (tmp_path / "results/trials").iterdir():
        config = json.loads((place / "config.json").read_text())
        shown = untimed(config)
        (place / "result.json").unlink()
        run_trial(config)
        assert untimed(config) == shown


# trackio shows what metrics.jsonl holds, from a store on this machine alone.

OWN = ROOT / ".venv/trackio/bin/python"
HERE = find_spec("trackio") is not None
needs_trackio = pytest.mark.skipif(not HERE, reason="runs in the environment of `make trackio`")


@pytest.mark.slow
@pytest.mark.skipif(HERE, reason="the other tests run here")
def test_trackio_in_an_environment_of_its_own() -> None:
    """It wants another pillow than ours."""
    if not OWN.exists():
        pytest.skip("no trackio: make trackio")
    words = [OWN, "-m", "pytest", "-m", "slow", "-p", "no:xdist", "-p", "no:cacheprovider"]
    tests = (test_trackio_holds_what_metrics_jsonl_holds, test_trials_of_a_sweep_share_the_database)
    words += [f"{__file__}::{test.__name__}" for test in tests]
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def shown(run: Any) -> list[dict[str, float]]:
    """Rows of a run of trackio's, as its own dashboard reads them."""
    from trackio.sqlite_storage import SQLiteStorage

    logs = SQLiteStorage.get_logs(run.project, run.name, run_id=run.id)
    assert [log.pop("step") for log in logs] == [log["update"] for log in logs]
    return [{key: log[key] for key in log if key != "timestamp"} for log in logs]


@pytest.mark.slow
@needs_trackio
def test_trackio_holds_what_metrics_jsonl_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each update once, though the second attempt repeats some; nothing goes to the network, or
    lies outside the store, not even with a token of Hugging Face."""

    def refuse(*_: object) -> None:
        raise AssertionError("nobody is to be asked")

    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
    monkeypatch.setattr(trackio_tracker, "WRITE_EVERY", 0)  # the end finds every row written
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    config = small_sweep.config(tmp_path)
    with pytest.raises(Stopped):
        tracked(config, chosen("tracking=trackio"), stop_after=7)
    for path in folder(config).glob("checkpoint*"):
        path.unlink()
    tracker = tracked(config, chosen("tracking=trackio"), sweeps=["main-micro", "other"])
    assert tracker.trouble is None
    assert untimed(config) == plain()
    assert [t.name for t in threading.enumerate()] == ["MainThread"]
    assert capfd.readouterr() == ("", "")
    assert [*home.rglob("*")] == []
    store = tmp_path / "results/tracking/trackio"
    assert {path.name for path in store.iterdir()} == {"pipegap.db", "pipegap.lock"}
    import trackio

    [run] = trackio.Api().runs("pipegap")
    assert (run.id, run.name) == (folder(config).name, "adamw clip_norm=1 sync seed 0")
    expected = [trials.untimed(dict(numbers(row))) for row in rows(config)]
    assert [trials.untimed(row) for row in shown(run)] == expected
    asked = json.loads((folder(config) / "config.json").read_text())
    assert {key: run.config[key] for key in asked} == asked
    assert run.config["result"]["status"] == "completed"
    assert run.config["choice"]["sweeps"] == ["main-micro", "other"]


@pytest.mark.slow
@needs_trackio
def test_trials_of_a_sweep_share_the_database(tmp_path: Path) -> None:
    """Which is another process's than the test's: it wrote to another store."""
    words = ["sweep=momentum", "scale=micro", "seeds=[0]", "grid.optimizer=[adamw]"]
    words += ["grid.optimizer.momentum=[0.9]", "tracking=trackio", "tracking.project=mine"]
    done = python("-m", "pipegap", "sweep", *words, *small_sweep.overrides(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    store = tmp_path / "results/tracking/trackio"
    read = "import json, trackio; from tests.sweeps.tracking.test_tracking import shown; "
    read += "print(json.dumps({run.id: shown(run) for run in trackio.Api().runs('mine')}))"
    found = python("-c", read, env={**os.environ, "TRACKIO_DIR": str(store)})
    assert found.returncode == 0, found.stderr
    expected = {}
    for metrics in tmp_path.glob("results/trials/*/metrics.jsonl"):
        lines = map(json.loads, metrics.read_text().splitlines())
        expected[metrics.parent.name] = [dict(numbers(row)) for row in lines]
    assert len(expected) == 2
    assert json.loads(found.stdout) == expected


# The dashboard shows what the tracker logs: its spec, read back as the server would have it.


def spec(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["dashboard", *words]) == 0
    return json.loads(capsys.readouterr().out)


def panels(workspace: Any) -> list[Any]:
    sections = workspace["spec"]["section"]["panelBankConfig"]["sections"]
    return [panel for section in sections for panel in section["panels"]]


@pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")
def test_validation_losses_are_drawn_by_update_grouped_by_arm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    workspace = spec(capsys, "sweep=main", "project=p", "entity=e")
    assert (workspace["project"], workspace["entity"]) == ("p", "e")
    first = panels(workspace)[0]["config"]
    assert first["metrics"] == ["val_loss"]
    assert first["xAxis"] == "update"
    assert first["groupBy"] == "jobType"
    assert first["smoothingType"] == "none"


@pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")
@pytest.mark.parametrize("names", ["main", "main,momentum"])
def test_it_is_filtered_to_the_tags_that_the_runs_of_the_sweeps_have(
    names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"sweep={names}", "scale=micro"]
    filters = json.dumps(spec(capsys, *words)["spec"]["section"]["runSets"][0]["filters"])
    assert all(f'"{label}"' in filters for label in parse_request(words).sweeps)
    assert '"tags"' in filters
    everything = spec(capsys)["spec"]["section"]["runSets"][0]["filters"]
    assert "tags" not in json.dumps(everything)


@pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")
def test_every_swept_key_is_an_axis_that_a_runs_config_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["sweep=momentum", "grid.correction=[error_feedback]", "grid.batch_size=[8,16]"]
    workspace = panels(spec(capsys, *words))
    [coordinates] = [p for p in workspace if p["viewType"] == "Parallel Coordinates Plot"]
    keys = [column["accessor"] for column in coordinates["config"]["columns"]]
    assert (keys[0], keys[-1]) == ("run:jobType", "summary:final_val_loss")
    config = small_sweep.config(tmp_path, "correction=error_feedback")
    config["choice"] = About("", (), "", "", config, 0.0).choices
    axes = [key.removeprefix("config:").split(".") for key in keys[1:-1]]
    for first, value, *rest in axes:
        assert value == "value"
        node = config[first]
        for part in rest:
            node = node[part]
        assert isinstance(node, str | float | int)
    assert {".".join(axis) for axis in axes} >= {
        "choice.value.optimizer",
        "choice.value.correction",
        "optimizer.value.momentum",
        "correction.value.coefficient",
        "batch_size.value",
    }


@pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")
def test_saving_without_a_key_is_refused_in_one_line(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert "WANDB_API_KEY" in refused(lambda: main(["dashboard", "mode=online"]))
