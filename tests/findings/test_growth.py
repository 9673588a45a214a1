"""The page on growth judges by its rule, runs the ladder that it tells of, and says so of noise no
more often than it says."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from findings.growth import __main__ as page
from pipegap.analysis.figures.figure import plot
from pipegap.analysis.statistics.pairs import Values
from pipegap.sweeps.plan.sweep_plan import plan_sweeps
from pipegap.sweeps.request.command_line import parse_request

SIZES = np.array([108_928.0, 320_256.0, 771_328.0, 2_017_536.0])
NUMBERS = (5, 5, 5, 3)
NOISE = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
"""Of five seeds; its mean is 0."""


def power_law(slope: float, noise: float, at_first: float = 0.02) -> list[Values]:
    """Gaps of five seeds at each size."""
    means = at_first * (SIZES / SIZES[0]) ** slope
    return [mean * (1 + noise * NOISE) for mean in means]


def drawn(rng: np.random.Generator, slope: float, noise: float) -> list[Values]:
    """Gaps of random seeds, whose standard deviation is a share `noise` of the mean."""
    means = (SIZES / SIZES[0]) ** slope
    return [
        mean * (1 + noise * rng.standard_normal(number))
        for mean, number in zip(means, NUMBERS, strict=True)
    ]


def test_of_two_rungs_a_steady_gap_is_tested_as_by_welch() -> None:
    """An independent test: at both ends of the interval its p is 5 %."""
    rng = np.random.default_rng(3)
    first, second = 1 + 0.2 * rng.standard_normal(5), 1.5 + 0.5 * rng.standard_normal(4)
    sizes = SIZES[[0, 3]]
    low, high = page.gap_trend([first, second], sizes).ends
    for end in (low, high):
        scaled = second / (sizes[1] / sizes[0]) ** end
        p = stats.ttest_ind(first, scaled, equal_var=False).pvalue
        assert p == pytest.approx(0.05, abs=0.005)


def test_a_power_law_has_its_exponent_whatever_the_unit() -> None:
    trend = page.gap_trend(power_law(0.3, 0.05), SIZES)
    assert trend.slope == pytest.approx(0.3, abs=0.003)
    assert trend.ends[0] < 0.3 < trend.ends[1]
    assert trend.word == "**grows**"
    value, low, high = trend.goes_on
    assert value == pytest.approx(0.02 * (page.PAPER_SIZE / SIZES[0]) ** 0.3, rel=0.03)
    assert low < value < high
    assert page.gap_trend([1000 * gaps for gaps in power_law(0.3, 0.05)], SIZES).ends == trend.ends


@pytest.mark.parametrize(
    ("slope", "noise", "word"),
    [(-0.3, 0.05, "**falls**"), (0.0, 0.05, "**stays**"), (0.05, 0.3, "not enough data")],
)
def test_a_trend_is_judged_by_its_interval(slope: float, noise: float, word: str) -> None:
    assert page.gap_trend(power_law(slope, noise), SIZES).word == word


def test_a_gap_that_may_be_nothing_at_a_rung_has_no_end_on_that_side() -> None:
    gaps = power_law(0.3, 0.05)
    gaps[0] = gaps[0] * 0 + 0.001 * NOISE
    low, high = page.gap_trend(gaps, SIZES).ends
    assert (high, page.gap_trend(gaps, SIZES).word) == (np.inf, "**grows**")
    assert low > 0
    assert page.gap_trend([0.01 * NOISE + 1e-4] * 4, SIZES).ends == (-np.inf, np.inf)


def test_a_share_changes_as_its_means_do() -> None:
    """Beside gaps without noise: then Welch's interval of a difference of means is exact."""
    gaps = [np.full(5, 0.04)] * 2
    corrected = [0.01 + 0.001 * NOISE, 0.02 + 0.003 * NOISE]
    trend = page.share_trend(gaps, corrected, np.array([1e5, 1e6]))
    shares = [1 - of / 0.04 for of in corrected]
    test = stats.ttest_ind(shares[1], shares[0], equal_var=False)
    assert trend.slope == pytest.approx(-0.25)
    assert trend.ends == pytest.approx([*test.confidence_interval(0.95)])


def test_the_rule_calls_noise_a_trend_about_as_often_as_it_says() -> None:
    """Two-sided 5 %, and a little more since the variance of three seeds is hardly known."""
    rng = np.random.default_rng(0)
    words = [page.gap_trend(drawn(rng, 0.0, 0.2), SIZES).word for _ in range(400)]
    wrong = sum(word in ("**grows**", "**falls**") for word in words)
    assert 0.02 < wrong / 400 < 0.10
    words = [page.gap_trend(drawn(rng, 0.3, 0.2), SIZES).word for _ in range(400)]
    assert words.count("**falls**") == 0
    assert words.count("**grows**") / 400 > 0.6


def made_up(noise: float = 0.05) -> pd.DataFrame:
    """A row per trial that run.sh asks for: AdamW's gap grows, the others stay; and one that
    tuned."""
    rows = []
    for (size, updates), optimizers in page.SEEDS.items():
        for optimizer, number in optimizers.items():
            exponent = 0.3 if optimizer == "adamw" else 0.0
            gap = 0.02 * (size / 108_928) ** exponent * (5_000 / updates)
            for seed in range(401, 401 + number):
                sync = 2.0 - 0.05 * np.log(size * updates) + 0.01 * (seed % 7)
                for arm, share in (("sync", 0.0), ("delay", 1.0), ("delay_ef", 0.25)):
                    loss = sync + share * gap * (1 + noise * ((seed % 5) - 2))
                    rows.append((size, updates, optimizer, arm, seed, loss, "completed"))
    rows.append((108_928, 5_000, "muon", "sync", 400, 2.0, "completed"))
    columns = ["num_parameters", "num_updates_asked", "optimizer", "arm", "seed"]
    table = pd.DataFrame(rows, columns=[*columns, "final_val_loss", "status"])
    return table.assign(
        table="trials_tiny.csv", batch_size=2, seq_len=64, **{"optimizer.lr": 0.004}
    )


def row(text: str, *starts: str) -> list[str]:
    """The cells of the row that begins so."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {' | '.join(starts)} |")]
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_page_of_a_whole_ladder_judges() -> None:
    text = page.result(made_up())
    adamw = row(text, "AdamW", "gap")
    assert adamw[2].startswith("+0.3")
    assert adamw[3:5] == ["**grows**", "4"]
    assert row(text, "Muon", "gap")[3:5] == ["**stays**", "4"]
    assert row(text, "SOAP", "gap")[3:5] == ["**stays**", "3"]
    assert row(text, "Muon", "share removed")[2].startswith("+0.00")
    assert row(text, "108,928", "AdamW", "delay")[3].startswith("−0.0133 [")
    assert "(lengths)" in row(text, "108,928", "AdamW", "delay")[5]
    assert row(text, "108,928", "5,000", "128", "Muon")[5:] == [
        *("1.0342", "+0.0200 [+0.0180, +0.0220]", "+0.0050 [+0.0045, +0.0055]", "75%", "5 of 5")
    ]
    assert row(text, "paper, 360M", "", "", "AdamW")[6:] == ["+0.278", "+0.028", "90%", "one seed"]


def test_what_has_not_run_is_waited_for() -> None:
    """A rung that is not there, a seed without one arm, and a rung that has only tuned."""
    whole = made_up()
    is_top = whole["num_parameters"] == 2_017_536
    text = page.result(whole[~is_top])
    assert row(text, "AdamW", "gap")[3:5] == [page.WAITS, "3"]
    assert row(text, "SOAP", "gap")[3:5] == ["**stays**", "3"]
    lost = (whole["num_parameters"] == 771_328) & (whole["arm"] == "delay_ef") & (whole.seed == 403)
    text = page.result(whole[~lost])
    assert row(text, "771,328", "5,000", "128", "Muon")[-1] == "4 of 5"
    assert row(text, "Muon", "gap")[3:5] == [page.WAITS, "3"]
    only_tuned = whole[whole["seed"] == 400]
    assert row(page.result(only_tuned), "Muon", "gap")[2:] == ["", page.WAITS, "0", ""]


def test_a_pair_comes_from_one_machine() -> None:
    """A seed whose arms are in two tables counts where one table has all of them."""
    whole = made_up()
    is_last = (whole["seed"] == 405) & (whole["arm"] == "delay_ef")
    whole.loc[is_last, "table"] = "trials_tiny_2.csv"
    muon = page.rungs(whole)[771_328, 5_000]["muon"]
    assert [*muon.index] == [401, 402, 403, 404]
    again = whole[whole["seed"] == 405].assign(table="trials_tiny_2.csv")
    again["final_val_loss"] += 1
    both = pd.concat([whole, again, whole.assign(table="trials_tiny_3.csv")])
    muon = page.rungs(both)[771_328, 5_000]["muon"]
    assert [*muon.index] == [401, 402, 403, 404, 405]
    assert muon["sync"][405] == pytest.approx(muon["sync"][404] + 0.01 + 1)
    assert "[trials_tiny.csv](trials_tiny.csv), [trials_tiny_2.csv]" in page.result(whole)


def test_a_run_that_diverged_is_counted() -> None:
    whole = made_up()
    lost = (whole["arm"] == "delay") & (whole["seed"] == 402) & (whole["optimizer"] == "adamw")
    whole.loc[lost & (whole["num_parameters"] == 320_256), "final_val_loss"] = np.nan
    whole.loc[lost & (whole["num_parameters"] == 320_256), "status"] = "diverged"
    cells = row(page.result(whole), "320,256", "5,000", "128", "AdamW")
    assert cells[6].endswith("], 1 diverged")
    assert cells[-1] == "4 of 5"


def test_the_figure_shows_every_gap_with_those_of_others() -> None:
    drawing = plot(page.GROWTH, page.figure_data(made_up()))
    assert len(drawing.specs) == 2
    shown = drawing.data[["who", "series", "arm"]]
    assert len(shown) == 2 * (5 * 3 + 2) + 6 + 2
    assert {"paper, 360M", "marin, 130M class, delay of 2"} <= {*shown["who"]}


def test_the_ladder_that_runs_is_the_one_that_is_judged(tmp_path: Path) -> None:
    """By the words that run.sh gives to a command that only writes them down."""
    command = tmp_path / "pipegap"
    command.write_text(
        '#!/bin/sh\nfor word in "$@"; do echo "$word" >> words; done; echo >> words\n'
    )
    command.chmod(0o755)
    script = [*("sh", str(page.FOLDER / "run.sh"), str(tmp_path / "results"))]
    first = str(min(os.sched_getaffinity(0)))
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(script, check=True, cwd=tmp_path, env={"PATH": path, "CORE": first})
    asked = {}
    for words in (tmp_path / "words").read_text().strip().split("\n\n"):
        assert words.startswith("sweep\n")
        [plan] = plan_sweeps(parse_request(words.split("\n")[1:]))
        trials = {(trial.plan.num_parameters, trial.plan.num_updates) for trial in plan.planned}
        [key] = trials
        seeds = len(plan.sweep.seeds)
        asked[key] = {str(name): seeds for name in plan.sweep.grid["optimizer"]}
        for trial in plan.planned:
            config = trial.config
            whole = config["optimizer"]["lr"] * config["optimizer"]["weight_decay"] * key[1]
            assert whole == pytest.approx(3.2, rel=1e-3)
            size = config["model"]["hidden_size"]
            assert config["model"]["initializer_range"] == pytest.approx(size**-0.5, rel=1e-3)
            assert size == 32 * config["model"]["num_heads"]
            tokens = config["batch_size"] * config["seq_len"]
            assert abs(tokens - key[0] / 750) <= 64
            assert config["compile"] == "update"
    assert asked == page.SEEDS


@pytest.mark.skipif(not [*page.FOLDER.glob("trials_*.csv")], reason="nothing is published yet")
def test_the_page_says_what_its_tables_say() -> None:
    assert page.result(page.published()) in (page.FOLDER / "README.md").read_text()
