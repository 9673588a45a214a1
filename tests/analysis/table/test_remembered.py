"""The same tables are worked on once; other ones, equal or not, by themselves."""

import pandas as pd

from pipegap.analysis.table.points import remembered


def test_the_same_tables_are_worked_on_once_while_they_live() -> None:
    seen = []

    @remembered
    def both(one: pd.DataFrame, two: pd.DataFrame) -> int:
        seen.append(len(one) + 10 * len(two))
        return seen[-1]

    first, second = pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1, 2]})
    assert [both(first, second), both(second, first), both(first, second)] == [21, 12, 21]
    assert seen == [21, 12]
    assert both(first.copy(), second) == 21
    assert seen == [21, 12, 21]
    # A later table may lie where one lay that is gone.
    for length in range(20):
        assert both(pd.DataFrame({"a": range(length)}), second) == 20 + length
