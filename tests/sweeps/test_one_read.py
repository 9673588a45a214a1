"""What trials have finished is read once by a command, and again where a file has changed."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.command_line import parse_request
from pipegap.trainer.store.opened import open_store
from pipegap.trainer.store.snapshot import Snapshot
from tests.support import small
from tests.support.processes import python
from tests.support.records import leave_finished, leave_loss

COUNTED = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from pipegap.sweeps.__main__ import main
codes = [main(words) for words in json.loads(sys.argv[1])]
print(json.dumps([name for name in opened if name.endswith("result.json")]))
sys.exit(max(codes))
"""
GRID = "grid: {optimizer: [adamw, sgd]}\nseeds: [0, 1]\n"
SWEEPS = {
    "plain": GRID,
    "tuned": f"{GRID}tune: {{optimizer.lr: [1, 2]}}\nearly_stop: {{margin: 1}}\n",
}


def finish(words: list[str]) -> set[str]:
    """Finishes every trial of a sweep, round by round; returns their results."""
    request = parse_request(words)
    now = Round.first(request, open_store(request.where))
    while now.runnable:
        for trial in now.runnable:
            took = {"final_val_loss": 1 + trial.config["optimizer"]["lr"], "tokens_per_second": 9.0}
            leave_finished(trial.folder, trial.config, trial_id=trial.trial_id, **took)
        now = now.again()
    return {str(trial.folder / "result.json") for trial in now.planned}


def test_a_sweep_with_nothing_to_do_opens_each_result_once(
    tmp_path: Path, without_figures: None
) -> None:
    """In a process of its own, in which everything that is opened is counted."""
    results, commands = set[str](), []
    for name, content in SWEEPS.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(f"{content}arms: {{sync: [], delay: [pipeline=pipedream_2bw]}}\n")
        own = small.overrides(tmp_path, f"results={tmp_path / name}")
        words = [f"sweep={file}", "scale=micro", *own]
        results |= finish(words)
        assert main(words) == 0, "its report is made"
        commands.append(words)
    done = python("-c", COUNTED, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    opened = Counter(json.loads(done.stdout.splitlines()[-1]))
    assert opened == dict.fromkeys(results, 1)


def test_a_snapshot_stays_and_the_next_one_opens_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[str]()

    def read(path: Path, whole: Callable[[Path], bytes] = Path.read_bytes) -> bytes:
        opened.append(path.parts[-2])
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    folders = {name: tmp_path / name for name in "abc"}
    for name in "ab":
        leave_loss(folders[name], 1.0)
    seen = Snapshot()
    first = {name: seen.result(folder) for name, folder in folders.items()}
    assert [bool(result) for result in first.values()] == [True, True, False]
    leave_loss(folders["b"], 2.25)
    leave_loss(folders["c"], 3.0)
    assert {name: seen.result(folder) for name, folder in folders.items()} == first
    later = seen.again()
    results = [later.result(folder) for folder in folders.values()]
    assert [result and result["final_val_loss"] for result in results] == [1.0, 2.25, 3.0]
    much_later = later.again().again()
    assert much_later.result(folders["a"]) == first["a"]
    assert opened == ["a", "b", "b", "c"]
