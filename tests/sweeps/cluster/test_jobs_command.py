"""`python -m sweeps jobs` on a cluster without sweeps."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from sweeps.commands import jobs


def test_it_says_that_there_are_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "jobs_of", nullcontext)
    monkeypatch.setattr(jobs, "sweep_jobs", lambda client: [])
    assert jobs.main([]) == 0
    assert capsys.readouterr().out == "the cluster has no jobs that are sweeps\n"
