"""A result names the code that made it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trainer.base.places import CODE_ROOT
from trainer.config import version
from trainer.config.version import code_version


@pytest.mark.skipif(not (CODE_ROOT / ".git").exists(), reason="needs a checkout with git")
def test_a_checkout_names_its_commit() -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=CODE_ROOT, check=True, capture_output=True, text=True
    )
    assert str(code_version()).removesuffix("-dirty") == head.stdout.strip()


def test_a_copy_without_git_names_the_commit_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other copies of the package may be installed: what they are says nothing of this one."""
    monkeypatch.setattr(version, "__file__", str(tmp_path / "trainer" / "config" / "version.py"))
    monkeypatch.setattr(version, "CODE_ROOT", tmp_path)
    (tmp_path / "trainer" / "config").mkdir(parents=True)
    monkeypatch.delenv("PIPEGAP_COMMIT", raising=False)
    assert code_version() is None
    monkeypatch.setenv("PIPEGAP_COMMIT", "abc")
    assert code_version() == "abc"
