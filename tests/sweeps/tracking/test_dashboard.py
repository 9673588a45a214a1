"""The dashboard shows what the tracker logs: its spec, read back as the server would have it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.tracking.tracker import About
from tests.support import small
from tests.support.refusals import Refused

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")  # wandb's


def spec(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["dashboard", *words]) == 0
    return json.loads(capsys.readouterr().out)


def panels(workspace: Any) -> list[Any]:
    sections = workspace["spec"]["section"]["panelBankConfig"]["sections"]
    return [panel for section in sections for panel in section["panels"]]


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


def test_every_swept_key_is_an_axis_that_a_runs_config_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["sweep=momentum", "grid.correction=[error_feedback]", "grid.batch_size=[8,16]"]
    workspace = panels(spec(capsys, *words))
    [coordinates] = [p for p in workspace if p["viewType"] == "Parallel Coordinates Plot"]
    keys = [column["accessor"] for column in coordinates["config"]["columns"]]
    assert (keys[0], keys[-1]) == ("run:jobType", "summary:final_val_loss")
    config = small.config(tmp_path, "correction=error_feedback")
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


def test_saving_without_a_key_is_refused_in_one_line(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert "WANDB_API_KEY" in refused(lambda: main(["dashboard", "mode=online"]))
