"""What a command line asks for: several sweeps, a file of one's own, a scale and its words."""

from pathlib import Path

import pytest

from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.schema import Sweep, check_sweep
from pipegap.trainer.base.errors import BadInput
from tests.support.sweep_requests import content, only


def test_a_trial_of_several_sweeps_has_the_tags_of_all(tmp_path: Path) -> None:
    request = parse_request(["sweep=main,horizon", "seeds=[0]", f"results={tmp_path}"])
    trials = all_planned(plan_sweeps(request))
    by_sweeps = {trial.sweeps for trial in trials}
    assert by_sweeps == {
        ("main-few_updates",),
        ("horizon-few_updates",),
        ("main-few_updates", "horizon-few_updates"),
    }
    shared = {trial.name: trial for trial in trials if len(trial.sweeps) == 2}
    assert shared["muon delay seed 0"].config["num_updates"] == 400
    names = {trial.name for trial in trials if trial.sweeps == ("horizon-few_updates",)}
    assert "adamw num_updates=100 delay_ef seed 0" in names
    assert (request.label, request.title) == (
        "main-few_updates_horizon-few_updates",
        "main-few_updates, horizon-few_updates",
    )


def test_of_several_sweeps_an_error_names_the_one_that_it_is_about() -> None:
    with pytest.raises(BadInput) as one:
        parse_request(["sweep=dtype", "dtype=bfloat16"])
    with pytest.raises(BadInput) as several:
        parse_request(["sweep=main,dtype", "dtype=bfloat16"])
    assert str(several.value) == f"{one.value} (sweep dtype-few_updates)"


def test_a_sweep_of_ones_own_needs_no_verdict_and_its_name_may_be_anything(tmp_path: Path) -> None:
    other = tmp_path / "mine & yours.yaml"
    other.write_text("grid: {optimizer: [sgd]}\narms: {sync: [pipeline=sync]}\nseeds: [0]\n")
    request = parse_request([f"sweep={other}"])
    assert [*request.sweeps] == ["mine-yours-few_updates"]
    assert request.sweeps["mine-yours-few_updates"].verdict is None


def test_the_overrides_of_a_scale_come_after_those_of_conf_and_before_the_command_lines() -> None:
    tiny = only("sweep=optimizers", "num_updates=7").base
    assert [word for word in tiny if word.startswith("num_updates")] == [
        f"num_updates={number}" for number in (400, 250, 7)
    ]
    large = only("sweep=optimizers", "scale=135m").base
    assert "num_updates=250" not in large
    with pytest.raises(BadInput, match="nowhere"):
        check_sweep(content(scales={"nowhere": []}))


def test_a_scale_adds_words_to_the_papers_sweeps_which_the_command_line_changes() -> None:
    def of(*words: str) -> Sweep:
        return parse_request(["scale=few_updates", *words]).sweeps["momentum-few_updates"]

    alone, figures, changed = (
        of("sweep=momentum").base,
        of("sweep=paper").base,
        of("sweep=paper", "dtype=float32").base,
    )
    words = ["dtype=auto", "eval_tokens=8192", "compile=update"]
    assert figures == [*words, *alone]
    assert changed == [*figures, "dtype=float32"]


def test_a_scale_changes_what_a_command_line_can_which_wins(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "grid: {size: [{model.hidden_size: 48}], optimizer.lr: [1, 2]}\n"
        "scales: {few_updates: "
        "['seeds=[7]', 'grid.size=[{batch_size: 8}]', 'tune.clip_norm=[1, 2]']}\n"
        "arms: {sync: [pipeline=sync]}\nseeds: [0]\nverdict: none\n"
    )
    tiny = only(f"sweep={path}", "grid.optimizer.lr=[3]")
    assert tiny.grid == {"size": [{"batch_size": 8}], "optimizer.lr": [3]}
    assert (tiny.seeds, tiny.tune) == ([7], {"clip_norm": [1, 2]})
    assert only(f"sweep={path}", "tune=null").tune == {}
    micro = only(f"sweep={path}", "scale=micro")
    assert micro.grid == {"size": [{"model.hidden_size": 48}], "optimizer.lr": [1, 2]}
    assert (micro.seeds, micro.tune) == ([0], {})
    assert only(f"sweep={path}", "seeds=[1,2]").seeds == [1, 2]
