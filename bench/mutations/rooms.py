"""The code that could fake a gap, and the tests that are tried on it."""

from __future__ import annotations

ROOMS = (
    "trainer/stages",
    "trainer/schedules",
    "trainer/executors",
    "trainer/corrections",
    "trainer/folder",
    "sweeps/cluster",
    "analysis/statistics",
)
STARTS_RAY = {"sweeps/cluster"}
"""Rooms of which some code runs only in tests that start Ray, which are too slow to be tried. A
mutant that no other test reaches is not counted there; elsewhere it has survived."""

TESTS = (
    "tests/trainer/test_agenda.py",
    *(f"tests/{room}/test_*.py" for room in ROOMS if room not in STARTS_RAY),
    *(
        f"tests/sweeps/cluster/test_{name}.py"
        for name in ("driver", "jobs", "package", "queue", "scratch")
    ),
    *("tests/analysis/claims/test_*.py", "tests/analysis/advice/test_*.py"),
    *("tests/analysis/report/test_report.py", "tests/sweeps/view/test_progress.py"),
)
"""Patterns of the files of tests."""

LEFT_OUT = (
    "tests/analysis/statistics/test_spikes.py::"
    "test_the_report_has_the_table_only_where_there_is_a_start",
    "tests/sweeps/cluster/test_driver.py::"
    "test_a_driver_starts_its_own_cluster_and_only_a_real_wish_stops",
    "tests/trainer/executors/test_pipelined.py::test_every_combination[4]",
    "tests/trainer/folder/test_resume.py::test_other_stages_go_on_exactly",
    "tests/trainer/folder/test_store_faults.py::"
    "test_a_full_disk_is_said_in_a_line_and_the_trial_goes_on_when_there_is_space",
    "tests/trainer/folder/test_takeover.py::test_the_loser_says_one_line_and_fails",
)
"""Tests of these files that are too slow."""
