"""Each verdict follows from its rule, on stores worked out by hand."""

import json
import re
import shlex
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributed.pipelining import PipelineStage
from torch.nn.functional import mse_loss

import pipegap
from pipegap.analysis import advise, load
from pipegap.analysis.__main__ import main
from pipegap.analysis.advice.advise import handover
from pipegap.analysis.advice.evidence import SameTime
from pipegap.analysis.advice.verdict import GO, STAY, UNDECIDED, Advice
from pipegap.analysis.commands import COMMANDS
from pipegap.analysis.commands import advise as advise_command
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.records import records
from tests.support.simulated_advice import ask
from tests.support.synthetic_store import config, ids, put, record, write, write_arms


def compared(advice: Advice, name: str) -> SameTime:
    """What the verdict against a pipeline rests on."""
    at = advice.rivals[name].same_time
    assert at is not None
    return at


def test_faster_and_no_worse_in_the_same_time_is_a_go(tmp_path: Path) -> None:
    """425 updates in the time of 400: half way between runs of 400 and 450, on a line that lies
    above what runs of 425 would give. 1F1B's time allows more than the 450 that were run."""
    put(tmp_path, "sync", [1.00, 1.01, 1.02])
    put(tmp_path, "delay", [1.02, 1.03, 1.05])
    put(tmp_path, "delay", [0.92, 0.93, 0.945], num_updates=450)
    advice = ask(tmp_path)
    for name, share, lengths in (("ZB-V", 0.5, (400, 450)), ("1F1B", 1, (450,))):
        at = compared(advice, name)
        gaps = np.array([0.02, 0.02, 0.03]) + share * np.array([-0.10, -0.10, -0.105])
        expected = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
        assert advice.rivals[name].decision.word == GO
        assert (at.lengths, at.sync_lengths, at.n) == (lengths, (400,), 3)
        assert at.gap == pytest.approx(gaps.mean())
        assert at.interval == pytest.approx((expected.low, expected.high))
    assert advice.verdict == advice.rivals["ZB-V"].decision
    # Sync's mean loss lies 70 / 305 of the way from the delayed runs' at 400 to that at 450.
    assert advice.gap is not None
    tax = (450 / 400) ** (70 / 305)
    assert advice.gap.tax.tax == pytest.approx(tax)


def test_slower_to_the_same_loss_is_a_stay(tmp_path: Path) -> None:
    put(tmp_path, "sync", [1.00, 1.01, 1.02])
    put(tmp_path, "delay", [1.30, 1.32, 1.32])
    put(tmp_path, "delay", [1.20, 1.21, 1.22], num_updates=425)
    advice = ask(tmp_path)
    assert advice.verdict.word == STAY
    assert compared(advice, "ZB-V").gap == pytest.approx(0.2)
    assert "not enough data: above 1.06: all delayed runs end higher than sync" in str(advice)


def test_an_interpolation_decides_nothing_in_favour_of_the_side_that_it_flatters(
    tmp_path: Path,
) -> None:
    """The same gap at the same time, on a line between runs of other lengths on either side."""
    stay, go = tmp_path / "stay", tmp_path / "go"
    for store, low, high in ((stay, 1.20, 1.0), (go, 3.0, 1.0)):
        put(store, "sync", [low, low + 0.01, low + 0.02], num_updates=200)
        put(store, "sync", [high, high + 0.01, high + 0.02])
        put(store, "delay", [1.10, 1.12, 1.13])
    # Sync after 400 / 1.0625 updates by hand: 1.20 less 0.8824 of the way to 1.0.
    by_hand = 1.1167 - (1.21 - 0.8824 * 0.2)
    assert compared(ask(stay), "ZB-V").gap == pytest.approx(by_hand, abs=1e-3)
    assert ask(stay).verdict.word == STAY  # sync's true loss is lower still
    assert 3.01 - 0.8824 * 2.0 > 1.13  # which would be a go
    assert ask(go, updates=400).verdict.word == UNDECIDED
    assert ask(go, updates=400).verdict.settle["num_updates"] == 550


def test_sync_runs_of_the_same_time_compare_as_well(tmp_path: Path) -> None:
    """To what a sync run of 376 updates reaches, the delayed one has time for 400."""
    put(tmp_path, "sync", [1.0, 1.01, 1.02])
    put(tmp_path, "sync", [1.2, 1.21, 1.22], num_updates=376)
    put(tmp_path, "delay", [1.10, 1.12, 1.13])
    advice = ask(tmp_path)
    at = compared(advice, "ZB-V")
    assert (at.updates, at.sync_updates) == pytest.approx((400, 400 / 1.0625))
    assert (at.lengths, at.sync_lengths) == ((400,), (376,))
    assert advice.verdict.word == GO
    assert advice.gap is not None
    assert advice.gap.tax.tax_from == "slope"


def test_an_interval_that_holds_zero_asks_for_seeds(tmp_path: Path) -> None:
    put(tmp_path, "sync", [1.00, 1.01, 1.02])
    put(tmp_path, "delay", [1.05, 1.05, 1.05])
    put(tmp_path, "delay", [0.94, 0.97, 1.01], num_updates=425)
    advice = ask(tmp_path)
    assert advice.verdict.word == UNDECIDED
    # Differences of −0.06, −0.04, −0.01: t(0.975, 4) = 2.776 times 0.0252 / √5 is 0.031 < 0.0367,
    # t(0.975, 3) = 3.182 times 0.0252 / √4 is 0.040.
    assert advice.verdict.settle["seeds"] == [0, 1, 2, 3, 4]
    assert advice.verdict.settle["grid.num_updates"] == [400, 425]
    assert "run more of these trials: num_updates=[400, 425], seeds=[0, 1, 2, 3, 4]" in str(advice)


def test_the_tax_stands_against_each_speed_up(tmp_path: Path) -> None:
    """Delayed runs of 400, 450 and 640 updates end 0.12, 0.03 and -0.1 from sync's 400: by hand a
    tax between the last two. It is above the 1.125 of ZB-H1 and below the 1.375 of 1F1B."""
    put(tmp_path, "sync", [1.00, 1.01, 1.02])
    for updates, gap in ((400, 0.12), (450, 0.03), (640, -0.1)):
        put(tmp_path, "delay", [1.0 + gap, 1.01 + gap, 1.021 + gap], num_updates=updates)
    advice = ask(tmp_path, updates=400)
    assert advice.gap is not None
    tax = 450 / 400 * (640 / 450) ** (3 / 13)
    assert advice.gap.tax.tax == pytest.approx(tax, rel=1e-3)
    assert f"{tax:.2f} [" in str(advice)
    assert "the speed-up over 1F1B: the tax is lower" in str(advice)
    assert "the speed-up over ZB-H1: the tax is higher" in str(advice)
    thin = tmp_path / "thin"
    for seed in (0, 1):
        put(thin, "sync", [1.0 + seed / 100])
    assert "token tax" not in str(ask(thin))


def test_an_uncertain_tax_decides_nothing(tmp_path: Path) -> None:
    put(tmp_path, "sync", [1.00, 1.01, 1.02])
    for updates, level in ((400, 1.1), (450, 1.02), (640, 0.9)):
        put(tmp_path, "delay", [level, level + 0.05, level - 0.02], num_updates=updates)
    assert "the speed-up over ZB-H1: not shown to be lower or higher" in str(
        ask(tmp_path, updates=400)
    )


@pytest.mark.parametrize(
    ("delay", "stages", "word", "told"),
    [
        (
            [1.02, 1.04, 1.05],
            4,
            UNDECIDED,
            "to settle it against ZB-V, run more of these trials: num_updates=550",
        ),
        ([1.4, 1.5, 1.6], 4, UNDECIDED, "not enough data: runs of one length only"),
        ([0.9, 0.9, 0.9], 4, GO, "400 against 400 updates, fewer than the time allows"),
        ([0.9, 0.9, 0.9], 1, STAY, "2BW is no faster here"),
        (
            [0.9, None, 0.9],
            4,
            STAY,
            "diverged where sync did not: delay in 1 of 3 runs of 400 updates",
        ),
    ],
    ids=["small gap, no longer runs", "no tax", "gap below 0", "no bubble", "diverged alone"],
)
def test_runs_of_one_length(
    tmp_path: Path, delay: list[float | None], stages: int, word: str, told: str
) -> None:
    """Whatever the loss was in the middle of a run: its learning rate had not decayed yet."""
    put(tmp_path, "sync", [1.00, 1.01, 1.02])
    put(tmp_path, "delay", delay)
    advice = ask(tmp_path, stages=stages)
    assert advice.verdict.word == word
    assert told in str(advice)
    assert advice.verdict.settle.get("num_updates") == (550 if word == UNDECIDED else None)


@pytest.mark.parametrize(("updates", "diverged"), [(425, 1), (450, 6), (640, 8)])
def test_a_longer_run_that_diverged_counts_against_its_arm(
    tmp_path: Path, updates: int, diverged: int
) -> None:
    """However low the others end: of the compared length, or next to it."""
    put(tmp_path, "sync", [1.0 + seed / 100 for seed in range(8)])
    put(tmp_path, "delay", [1.01 + seed / 100 for seed in range(8)])
    longer = [None if seed < diverged else 0.8 + seed / 100 for seed in range(8)]
    put(tmp_path, "delay", longer, num_updates=updates)
    advice = ask(tmp_path)
    assert advice.verdict.word == STAY
    counted = f"delay in {diverged} of 8 runs of {updates} updates"
    assert advice.verdict.why == f"the delayed runs diverged where sync did not: {counted}"
    put(tmp_path, "sync", [None] * 8, num_updates=updates)  # no run that long can be trained
    assert ask(tmp_path, updates=400).verdict.word == UNDECIDED


def test_an_arm_that_did_not_diverge_is_left(tmp_path: Path) -> None:
    put(tmp_path, "sync", [1.0, 1.01, 1.02])
    for arm, longer in (("delay", [0.8, 0.81, 0.82]), ("delay_ef", [0.7, 0.7, None])):
        put(tmp_path, arm, [1.05, 1.06, 1.06])
        put(tmp_path, arm, longer, num_updates=425)
    advice = ask(tmp_path)
    assert advice.verdict.word == GO
    assert advice.gap is not None
    assert advice.gap.arm == "delay"
    assert compared(advice, "ZB-V").gap == pytest.approx(-0.2)


@pytest.mark.parametrize("losses", [{"sync": [1.0], "delay": [0.5]}, {"sync": [1.0, 1.0]}, {}])
def test_fewer_than_two_pairs_decide_nothing(tmp_path: Path, losses: dict[str, Any]) -> None:
    write(tmp_path, config("sync", seed=9), None)
    for arm, of_seeds in losses.items():
        put(tmp_path, arm, of_seeds)
    advice = ask(tmp_path)
    assert advice.verdict.word == UNDECIDED
    assert "run more of these trials: seeds=[0, 1, 2]" in str(advice)


@pytest.mark.parametrize(
    ("updates", "keys", "why", "settle"),
    [
        (99, {}, "runs of 99 updates decide nothing: fewer than 100", {"scale": "tiny"}),
        (400, {"momentum": 0.9}, "regime begins at 1,000 with", {"num_updates": 1000}),
        (400, {"weight_decay": 0.5}, "regime begins at 910 with", {"num_updates": 910}),
        (400, {"weight_decay": 0.0}, "no length without decay", {"scale": "tiny"}),
    ],
    ids=["a smoke test", "short beside the momentum", "decay inactive", "no decay"],
)
@pytest.mark.parametrize("longer", [[0.9, 0.91, 0.921], [1.4, 1.41, 1.421], [None] * 3])
def test_runs_outside_of_a_regime_decide_nothing(
    tmp_path: Path,
    updates: int,
    keys: dict[str, float],
    why: str,
    settle: dict[str, Any],
    longer: list[float | None],
) -> None:
    """Neither go nor stay, whatever the runs end at; longer ones of the same setting decide."""
    for arm, losses in (("sync", [1.0, 1.01, 1.02]), ("delay", [1.05, 1.06, 1.071])):
        put(tmp_path, arm, losses, num_updates=updates, **keys)
    put(tmp_path, "delay", longer, num_updates=2 * updates, **keys)
    put(tmp_path, "delay", longer, num_updates=round(1.0625 * updates), **keys)
    record(
        tmp_path, "main", "micro", ids(tmp_path), words=["sweep=main", "data=mine", "seq_len=64"]
    )
    advice = ask(tmp_path, updates=updates, records=records(tmp_path))
    for rival in advice.rivals.values():
        assert rival.decision.word == UNDECIDED
        assert why in rival.decision.why
        assert settle.items() <= rival.decision.settle.items()
    if "scale" in settle:
        words = ["sweep=main", "scale=tiny", "grid.optimizer=[adamw]", "data=mine"]
        assert shlex.split(advice.command) == ["pipegap", "sweep", *words]
    else:
        assert f"num_updates={settle['num_updates']}" in advice.command


@pytest.mark.parametrize(
    ("delay", "is_lower", "why"),
    [
        ([1.1, 1.11, 1.121], True, "runs of 160 updates decide nothing"),
        ([1.1, 2.1, 3.1], False, "in the same time its loss is"),
    ],
    ids=["they would decide", "they decide nothing anyway"],
)
def test_runs_of_sync_that_are_too_short_decide_nothing(
    tmp_path: Path, delay: list[float], is_lower: bool, why: str
) -> None:
    """Runs of 220 updates are long enough at a momentum of 0.5, those of 160 are not."""
    put(tmp_path, "sync", [1.0, 1.01, 1.02], num_updates=220)
    put(tmp_path, "sync", [2.0, 2.01, 2.02], num_updates=160)
    put(tmp_path, "delay", delay, num_updates=220)
    rival = ask(tmp_path, updates=220).rivals["1F1B"]
    assert rival.same_time is not None
    assert rival.same_time.sync_lengths == (160,)
    assert rival.same_time.is_lower == is_lower
    assert rival.decision.word == UNDECIDED
    assert rival.decision.why.startswith(why)


def test_a_smoke_test_recommends_no_coefficient_and_no_tax_pays(tmp_path: Path) -> None:
    """Though Error Feedback removes three quarters of the gap, and a tax of 1.06 is low."""
    for updates, words in (
        (20, "fewer than 100 updates"),
        (400, "the tax is lower, so the delay pays"),
    ):
        store = tmp_path / str(updates)
        for arm, level, length in (
            *(("sync", 1.0, updates), ("delay", 1.4, updates), ("delay_ef", 1.1, updates)),
            ("delay_ef", 0.5, round(1.4 * updates)),
        ):
            put(store, arm, [level, level + 0.01, level + 0.021], num_updates=length)
        told = str(ask(store, updates=updates))
        of_tax = told.split("token tax of delay")[1]
        assert ("[" in of_tax) == (updates == 400)
        assert words in of_tax
        assert ("the delay pays: 1." in told) == (updates == 400)
        assert ("Error Feedback: 1 (smallest" in told) == (updates == 400)


def test_a_smoke_test_without_a_pair_is_not_repeated(tmp_path: Path) -> None:
    put(tmp_path, "delay", [1.0, 1.1], num_updates=20)
    assert ask(tmp_path).verdict.settle == {"scale": "tiny"}


def test_the_cost_is_that_of_the_arm_that_decided(tmp_path: Path) -> None:
    """Error Feedback is not shown to remove a part of so small a gap, but it alone ran longer."""
    put(tmp_path, "sync", [1.0, 1.01, 1.02])
    put(tmp_path, "delay", [1.03, 1.01, 1.04])
    put(tmp_path, "delay_ef", [1.02, 1.03, 1.05])
    put(tmp_path, "delay_ef", [0.8, 0.81, 0.83], num_updates=550)
    advice = ask(tmp_path)
    assert advice.gap is not None
    assert advice.gap.arm == "delay"
    assert advice.rivals["1F1B"].decision.word == GO
    assert "delay + Error Feedback costs a gap of +0.0233 [" in str(advice)
    assert "and 2 more sets of weights" in str(advice)


# `pipegap advise` answers in text and JSON, and says in a line what it cannot use.

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
    advise_command.main(PIPELINE | {"results": str(results)} | more)
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
        advise_command.main(words)
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
    advise_command.main(words)
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
    advise_command.main(words | {"format": "json"})
    both = json.loads(capsys.readouterr().out)
    assert [advice["optimizer"] for advice in both] == ["muon", "adamw"]
    for advice in both:
        assert [rival.partition(" (")[0] for rival in rivals] == [*advice["rivals"]]


def test_a_store_without_a_delay_has_no_optimizer_to_ask_about(tmp_path: Path) -> None:
    """What is named is the word that leaves no trial with a delay: the store, or a condition."""
    write_arms(tmp_path, {"sync": [1.0, 1.1]})
    words = {"stages": "4", "microbatches": "8", "results": str(tmp_path)}
    with pytest.raises(BadInput, match=f"^results={tmp_path}: must have trials with a delay"):
        advise_command.main(words)
    put(tmp_path, "delay", [1.2, 1.3])
    advise_command.main(words)
    with pytest.raises(BadInput, match=r"^data=other: must have trials with a delay"):
        advise_command.main({**words, "data": "other"})


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


# The code under a *go* trains as the runs that it was said of.

SYNC, FEEDBACK = [1.00, 1.01, 1.02], [0.90, 0.92, 0.91]
CLIP = 0.1


def lines(store: Path, delay: list[float], feedback: list[float]) -> str:
    losses: dict[str, list[float | None]] = {"sync": [*SYNC], "delay": [*delay]}
    write_arms(store, losses | {"delay_ef": [*feedback]}, optimizer="muon")
    return handover([advise(load(store), optimizer="muon", stages=4, microbatches=8)])


def new() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR


@pytest.mark.usefixtures("one_rank")
def test_the_code_trains_with_the_delay_and_the_coefficient_that_were_judged(
    tmp_path: Path,
) -> None:
    head, *code = lines(tmp_path, [1.20, 1.22, 1.23], FEEDBACK).splitlines()
    assert head.startswith("to go with Muon on torch.distributed.pipelining, in place of ")
    assert len(code) == 3
    batches = torch.randn(6, 8, 2, generator=torch.Generator().manual_seed(1))
    *before, drain = dedent("\n".join(code)).splitlines()

    model, optimizer, decay = new()
    names = {
        **{"pipegap": pipegap, "loss_fn": mse_loss, "max_norm": CLIP, "optimizer": optimizer},
        **{"scheduler": decay(optimizer, 0.9), "evaluate": lambda: None, "save": lambda: None},
        "stage": PipelineStage(model, 0, 1, torch.device("cpu")),
    }
    exec("\n".join(before), names)
    for batch in batches:
        names["schedule"].step(batch, target=batch.flip(1))
    exec(drain, names)

    expected, inner, decay = new()
    delayed = pipegap.DelayedOptimizer(inner, delay=1, error_feedback=1.0)
    scheduler = decay(delayed, 0.9)
    for batch in batches:
        delayed.zero_grad()
        mse_loss(expected(batch), batch.flip(1)).backward()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), CLIP)
        delayed.step()
        scheduler.step()
    with delayed.newest():
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_the_coefficient_is_that_of_the_arm_that_won(tmp_path: Path) -> None:
    assert "error_feedback=0)" in lines(tmp_path, [0.80, 0.81, 0.82], FEEDBACK)


def test_where_nothing_says_go_there_is_no_code(tmp_path: Path) -> None:
    assert not lines(tmp_path, [1.20, 1.22, 1.23], [1.30, 1.31, 1.33])
