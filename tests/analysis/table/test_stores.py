"""Two stores in one report: trials of both, each once, and what differs is said."""

import json
import shutil
from pathlib import Path

import pytest

from pipegap.analysis.__main__ import main
from pipegap.analysis.table.load import load
from pipegap.analysis.table.stores import several, stored
from pipegap.trainer.base.errors import BadInput
from tests.support.synthetic_store import ids, write_arms


def test_trials_of_two_stores_are_compared_and_what_differs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    write_arms(one, {"sync": [1.5, 1.6]})
    shutil.copytree(one, other)
    first, second = ids(one)
    changed = other / "trials" / first / "result.json"
    changed.write_text(json.dumps({**json.loads(changed.read_text()), "final_val_loss": 1.75}))
    (one / "trials" / second / "result.json").unlink()  # unfinished there, finished in the other
    write_arms(other, {"delay": [1.9]})
    with pytest.warns(UserWarning, match="trial") as caught:
        table, _ = stored([one, other])
    assert sorted(str(warning.message) for warning in caught) == [
        f"2 trials of {one} and 3 trials of {other} are compared, 2 trials are in several and "
        f"count once; commands name {one}",
        f"trial {first} differs in {one} (shown) and {other}: final_val_loss 1.5 and 1.75",
    ]
    losses = table.set_index("trial_id")["final_val_loss"]
    assert (losses[first], losses[second], len(losses)) == (1.5, 1.6, 3)
    alone = load(other)
    assert {*table} == {*alone}
    assert (table[[*alone]].dtypes == alone.dtypes).all()
    assert main(["report", f"results=[{one},{other}]", f"out={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr().out
    assert f"warning: trial {first} differs in {one} (shown) and {other}: " in printed
    assert (tmp_path / "out" / "trials.csv").read_text().count("\n") == 4


def test_a_folder_with_brackets_is_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert several("[a,b]") == ["a", "b"]
    Path("[a,b]").mkdir()
    assert several("[a,b]") == ["[a,b]"]
    for word in ("[a,a]", "[a,./a]", "[a,]"):
        with pytest.raises(BadInput, match="must name stores, each once"):
            several(word)
