"""`pipegap advise` answers in text and JSON, and says in a line what it cannot use."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipegap.analysis.__main__ import main
from pipegap.analysis.commands import COMMANDS, advise
from pipegap.trainer.base.errors import BadInput
from tests.support.synthetic_store import ids, record, write_arms

PIPELINE = {"optimizer": "muon", "stages": "4", "microbatches": "8"}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    losses: dict[str, list[float | None]] = {
        "sync": [1.00, 1.01, 1.02],
        "delay": [1.20, 1.22, 1.23],
        "delay_ef": [0.90, 0.92, 0.91],
    }
    write_arms(tmp_path, losses, optimizer="muon")
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], results: Path, **more: str) -> str:
    advise.main(PIPELINE | {"results": str(results)} | more)
    return capsys.readouterr().out


def test_json_says_the_same(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    advice: dict[str, Any] = json.loads(answer(capsys, results, format="json"))
    assert advice["verdict"]["word"] == "go asynchronous"
    rivals, in_a_v = advice["rivals"], dict.fromkeys(("ZB-V", "DualPipeV"), 25.5 / 24)
    by_hand = {"1F1B": 11 / 8, "interleaved 1F1B": 8.75 / 8, "ZB-H1": 27 / 24, **in_a_v}
    assert {name: rivals[name]["speed_up"] for name in by_hand} == pytest.approx(by_hand)
    assert advice["most_activations"] == 4
    fitting = [rival for rival in rivals.values() if rival["activations"] <= 4]
    fastest = min(rival["speed_up"] for rival in fitting)
    assert rivals[advice["rival"]]["speed_up"] == pytest.approx(fastest)
    assert advice["gap"]["gap"] == pytest.approx(-0.1)
    assert advice["gap"]["removed_interval"]
    assert advice["gap"]["tax"]  # NaN is not JSON


@pytest.mark.parametrize("optimizer", ["muon", ""])
def test_a_narrow_terminal_breaks_no_word_and_no_command(
    optimizer: str,
    capsys: pytest.CaptureFixture[str],
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What follows a broken line stands further in than that line."""
    write_arms(results, {"sync": [1.0, 1.1], "delay": [1.0, 1.3]})
    record(results, "main", "tiny", ids(results))
    words = {"stages": "4", "microbatches": "8", "results": str(results)}
    words |= {"optimizer": optimizer} if optimizer else {}

    def told(width: int | None) -> str:
        monkeypatch.setattr("pipegap.analysis.table.text.terminal_width", lambda: width)
        advise.main(words)
        return capsys.readouterr().out

    wide, narrow = told(None), told(80)
    assert max(map(len, wide.splitlines())) > 100
    code = wide.partition("to go with")[2].splitlines()[1:]
    for line in narrow.splitlines():
        assert len(line) <= 80 or line in code or line.lstrip().startswith("pipegap "), line
    assert {*code} <= {*narrow.splitlines()}
    commands = re.findall(r"pipegap sweep .*", wide)
    assert bool(commands) == (not optimizer)
    assert all(command.endswith(f" results={results}") for command in commands), "else trains anew"
    assert re.findall(r"pipegap sweep .*", narrow) == commands
    for number in re.findall(r"[+-]\d+\.\d{4} \[[^]]*\] n=\d", wide):
        assert number in narrow
    assert re.search(r"^\S.*\n    \S", narrow, re.MULTILINE)


def test_without_an_optimizer_all_are_answered(
    capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    write_arms(results, {"sync": [1.0, 1.1], "delay": [1.5, 1.6]})
    words = {"stages": "4", "microbatches": "8", "results": str(results)}
    advise.main(words)
    table, said, code = capsys.readouterr().out.split("\n\n")
    assert code.startswith("to go with Muon")
    of_muon, of_adamw, *rows = table.splitlines()
    told = (
        "tiny (450k parameters), wiki, 400 updates, {}: how its losses change with size is not "
        "known; time simulated for 4 stages, 8 microbatches"
    )
    assert of_muon == "Muon: " + told.format("delay + Error Feedback")
    assert of_adamw == "AdamW: " + told.format("delay")
    heads, *lines = (line.split("  ") for line in rows)
    pipeline, *rivals = (head.strip() for head in heads if head)
    assert pipeline == "4 stages, 8 microbatches"
    assert "interleaved 1F1B (4 parts)" in rivals
    words_of = {name: [*dict.fromkeys(w.strip() for w in rest if w)] for name, *rest in lines}
    assert words_of == {"AdamW": ["not enough data"], "Muon": ["go"]}
    assert said.startswith("Muon: go, against every schedule; "), "most decided first"
    assert "\nAdamW: not enough data, against any schedule; " in said
    advise.main(words | {"format": "json"})
    both = json.loads(capsys.readouterr().out)
    assert [advice["optimizer"] for advice in both] == ["muon", "adamw"]
    for advice in both:
        assert [rival.partition(" (")[0] for rival in rivals] == [*advice["rivals"]]


def test_a_store_without_a_delay_has_no_optimizer_to_ask_about(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0, 1.1]})
    with pytest.raises(BadInput, match="optimizer=: must be one that was trained"):
        advise.main({"stages": "4", "microbatches": "8", "results": str(tmp_path)})


def test_parts_of_the_model_are_no_more_than_its_layers(
    capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    """Thirty layers on four ranks are seven each; four layers on four ranks have no second part."""
    for words, chunks in (({"forward": "smollm2_135m"}, 7), ({"chunks": "3"}, 3)):
        advice = json.loads(answer(capsys, results, format="json", **words))
        assert advice["rivals"]["interleaved 1F1B"]["num_chunks"] == chunks
    advice = json.loads(answer(capsys, results, format="json", forward="tiny"))
    assert {rival["num_chunks"] for rival in advice["rivals"].values()} == {1}
    assert {"1F1B", "ZB-H1"} <= {*advice["rivals"]}
    assert sum(advice["costs"]["forward"]) == pytest.approx(4), "in means of a stage"


def test_costs_of_the_stages_change_the_speed(
    capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    """A stage of twice the work: 2BW takes m times its forward and backward, 1F1B a pass more."""
    more = {"stages": "2", "microbatches": "4", "forward": "1,2", "backward": "2,4"}
    advice = json.loads(answer(capsys, results, format="json", **more))
    assert advice["rivals"]["1F1B"]["speed_up"] == pytest.approx((4 * 6 + 3) / (4 * 6))
    text = answer(capsys, results, **more)
    assert "the costs that were given" in text
    assert "takes 1.33 times the mean: all these pipelines are as fast as 1.5 equal stages" in text
    assert "times the mean" not in answer(capsys, results)


def test_stages_of_a_model_are_as_uneven_as_it_is_cut(
    capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    """The head of 135m alone is a fifth of its work: beyond six stages layers run out."""
    words = {"stages": "8", "microbatches": "16", "forward": "smollm2_135m"}
    assert "takes 1.49 times the mean" in answer(capsys, results, **words)


def test_more_activations_allow_another_rival(
    capsys: pytest.CaptureFixture[str], results: Path
) -> None:
    """Where backwards are short, halves of them fill little of the bubble."""
    short = {"forward": "8", "backward": "2"}
    assert "allowed are 4, so ZB-V is the fastest" in answer(capsys, results, **short)
    more = answer(capsys, results, **short, activations="5.5")
    assert "allowed are 5.5, so interleaved 1F1B is the fastest" in more


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: pipegap {name} " in capsys.readouterr().out
