"""Names as people write them: every optimizer has one, and no two arms share one."""

from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis import load
from pipegap.analysis.table import names as arm_names
from tests.support.swept_store import ALL_ARMS, write_sweep

CONF = Path(__file__).parents[3] / "pipegap" / "conf"


def test_an_optimizer_has_the_name_that_its_yaml_says_or_that_of_its_file() -> None:
    assert {path.stem for path in (CONF / "optimizer").glob("*.yaml")} <= {*arm_names.OPTIMIZERS}
    assert [arm_names.optimizer(name) for name in ("normuon", "soap", "lion")] == [
        *("NorMuon", "SOAP", "Lion")
    ]
    assert arm_names.optimizer("my_own") == "My Own"


def test_arms_are_named_by_what_they_are_made_of(tmp_path: Path) -> None:
    write_sweep(tmp_path, "optimizers", optimizers=["adamw"], seeds=1, arms=ALL_ARMS)
    arms = arm_names.arms(load(tmp_path))
    assert arms["delay_ef"] == "delay + EF"
    assert arms["delay_ef(0.25)"] == "delay + EF (λ = 0.25)"
    assert arms["delay_ef_gradient"] == "delay + EF on gradients"
    assert arms["delay_taylor(1000)"] == "delay + Taylor (λ = 1,000)"
    assert arms["delay_ef+start(0.1)"] == "delay + EF, sync start 10 %"
    assert len({*arms.values()}) == len(arms)


def test_what_has_no_name_here_keeps_its_label() -> None:
    row = {"schedule": "pipedream_2bw", "method": "taylor", "coefficient": 1.0, "lag": None}
    arms = pd.DataFrame(
        [
            {**row, "start": 0, "cooldown": 0, "delay": 1, "arm": arm}
            for arm in ("delay_taylor(1)", "delay_taylor(1,decay=0.5)")
        ]
    )
    assert arm_names.arms(arms) == {arm: f"delay + Taylor (λ = 1) ({arm})" for arm in arms["arm"]}


@pytest.mark.parametrize(
    ("text", "written"),
    [("-0.5 [-1, +2]", "−0.5 [−1, +2]"), ("1e-05", "1e-05"), ("GPT-2, T-3", "GPT-2, T-3")],
)
def test_a_minus_is_one_where_a_number_is_negative(text: str, written: str) -> None:
    assert arm_names.minus(text) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("muon (optimizer.lr=0.004), delay_ef", "Muon (learning rate 0.004), delay + EF"),
        ("adamw -0.5 n=3", "AdamW −0.5 n=3"),
        ("batch_size 8; lr_schedule=inverse_sqrt", "batch size 8; schedule inverse square root"),
        ("delay_ef(0.25) of mine", "delay_ef(0.25) of mine"),
        ("not run: sweep=batch_size results=my/muon", "not run: sweep=batch_size results=my/muon"),
    ],
)
def test_a_sentence_about_keys_is_told_in_their_names(text: str, written: str) -> None:
    assert arm_names.prose(text) == written
