"""A report that began before its trials were known is the same report."""

from pathlib import Path

import pytest

from pipegap.analysis.report.ahead import MANY, Ahead
from pipegap.analysis.report.report import report
from tests.support.reports import with_figures
from tests.support.synthetic_store import write_arms

OF_CLOCK = "index.html"


def contents(folder: Path) -> dict[str, bytes]:
    """Files by their names, but for the page, which says when it was made."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != OF_CLOCK)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_its_files_are_the_same_and_what_goes_wrong_in_its_process_is_raised(
    tmp_path: Path,
) -> None:
    write_arms(tmp_path / "store", {"sync": [1.7, 1.6], "delay": [2.2, 2.0]})
    with pytest.raises(FileExistsError), Ahead(MANY) as ahead:  # noqa: PT012
        ahead.begin()
        worker = ahead.worker
        ahead.begin()
        assert ahead.worker is worker, "it begins once"
        with with_figures(()):
            said = report(tmp_path / "store", tmp_path / "ahead", worker=worker)
        assert worker is not None
        worker.do(Path.mkdir, tmp_path / "ahead")
    with with_figures(()):
        alone = report(tmp_path / "store", tmp_path / "alone")
    assert said.replace("/ahead:", "/alone:") == alone
    assert (tmp_path / "ahead" / OF_CLOCK).is_file()
    known = contents(tmp_path / "alone")
    assert known.keys() > {"trials.csv", "gaps.tex"}
    assert contents(tmp_path / "ahead") == known
