"""A CSV of trials that a report wrote is as good a table as the store that it was made of."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from analysis import advise, best, gaps, load
from analysis.report.report import report
from tests.support.synthetic_store import put
from trainer.base.errors import BadInput

ROOT = Path(__file__).parents[3]
EVERY = sorted((ROOT / "docs").glob("*trials.csv"))


@pytest.fixture(scope="module")
def published(few_figures: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store with a diverged trial, a key that is null and lists; and the CSV of its report."""
    folder = tmp_path_factory.mktemp("published")
    store = folder / "store"
    for length, level in ((200, 2.0), (400, 1.8)):
        for arm, gap in (("sync", 0.0), ("delay", 0.123456789012345), ("delay_ef", 0.05)):
            losses = [level + gap, level + gap + 0.01, None if arm == "delay" else level + gap]
            put(store, arm, losses, num_updates=length, clip_norm=None, eps=1e-8, decay=1.0)
    report(store, folder / "out")
    return store, folder / "out" / "trials.csv"


def test_what_is_told_of_a_csv_is_what_is_told_of_its_store(published: tuple[Path, Path]) -> None:
    store, csv = published
    of_store, of_csv = load(store), load(csv)
    same = [name for name in of_store if name not in ("folder", "data.path", "results", "out")]
    assert_frame_equal(of_csv[same], of_store[same])
    assert_frame_equal(gaps(of_csv), gaps(of_store))
    assert_frame_equal(best(of_csv), best(of_store))
    asked = {"optimizer": "adamw", "stages": 4, "microbatches": 8}
    assert str(advise(of_csv, **asked)) == str(advise(of_store, **asked))


def test_some_of_its_trials(published: tuple[Path, Path]) -> None:
    _, csv = published
    assert load(csv, {"0001", "0004", "none"})["trial_id"].tolist() == ["0001", "0004"]


def test_a_table_that_is_not_one_of_trials_is_refused(published: tuple[Path, Path]) -> None:
    _, csv = published
    with pytest.raises(BadInput, match=r"gaps\.csv: must be a trials\.csv .* lacks trial_id"):
        load(csv.with_name("gaps.csv"))
    with pytest.raises(BadInput, match="no such folder"):
        load(csv.with_name("nothing.csv"))


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_every_csv_of_the_documents_is_one(path: Path) -> None:
    trials = load(path)
    assert len(trials) == len(path.read_text().splitlines()) - 1
    assert (trials["final_val_loss"].isna() == (trials["status"] == "diverged")).all()


@pytest.mark.filterwarnings("ignore:.*(pairs mix|several versions):UserWarning")
def test_csvs_are_put_together_as_tables_are() -> None:
    """A key that is null is one value, whichever of them holds it."""
    names = ("tiny_trials", "momentum_trials", "advice_trials")
    trials = pd.concat([load(ROOT / "docs" / f"{name}.csv") for name in names])
    found = gaps(trials)
    row = found[(found["optimizer"] == "muon") & (found["arm"] == "delay_ef")]
    assert row["setting"].str.contains("momentum=0.95, num_updates=400").any()
    assert not row["setting"].str.contains("None|nan").any()
