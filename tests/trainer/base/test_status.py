"""A status is its word wherever it is written."""

import csv
import io
import json

import pandas as pd

from trainer.base.status import ACTIVE, ENDED, FINAL, Status


def test_json_and_csv_hold_the_word_and_what_is_read_equals_it() -> None:
    row = {"status": Status.COMPLETED, Status.DIVERGED: 3}
    assert json.dumps(row) == '{"status": "completed", "diverged": 3}'
    written = io.StringIO()
    csv.writer(written).writerow([Status.FAILED, f"{Status.RUNNING:<9}|"])
    assert written.getvalue() == "failed,running  |\r\n"

    assert json.loads('"interrupted"') == Status.INTERRUPTED
    assert {Status.WAITING: 1}["waiting"] == 1
    assert [word for word in ("completed", "diverged", "failed") if word in FINAL] == [*FINAL]


def test_tables_compare_and_hold_the_word() -> None:
    column = pd.Series(["completed", "failed", None], dtype="string")
    assert (column == Status.FAILED).fillna(False).tolist() == [False, True, False]
    assert column.isin(FINAL).tolist() == [True, False, False]
    made = pd.DataFrame({"status": pd.Series([Status.COMPLETED, None], dtype="string")})
    assert made.to_csv(index=False).startswith("status\ncompleted\n")
    masked = column.mask(column == "completed", Status.RUNNING)
    assert {type(word) for word in masked.dropna()} == {str}


def test_no_status_is_of_two_kinds() -> None:
    assert not {*ENDED} & {*ACTIVE}
    assert {*FINAL} < {*ENDED}
