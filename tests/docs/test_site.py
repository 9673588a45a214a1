"""The documentation site builds without a warning, links and anchors included."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.markdown import ROOT


class _Tagged(yaml.SafeLoader):
    """Reads `!ENV […]` as None."""


_Tagged.add_constructor("!ENV", lambda loader, node: None)


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)


@pytest.mark.long
def test_it_builds_and_links_to_every_page_of_the_repository(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    front = (tmp_path / "index.html").read_text()
    assert 'href="docs/semantics/"' in front
    assert "../bench/" in (tmp_path / "docs" / "pipeline" / "index.html").read_text()


def test_links_that_lead_nowhere_fail_it(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    root.mkdir()
    for name in ("bench", "docs", "findings"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("mkdocs.yml", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, root)
    (root / "CONTRIBUTING.md").write_text("[a](docs/nowhere.md) [a](docs/trial.md#no-title)")
    done = build(root, tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
    assert "no-title" in done.stderr


def test_its_three_groups_name_every_page_of_docs() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), _Tagged)
    groups = {name: pages for entry in config["nav"] for name, pages in entry.items()}
    assert [*groups] == ["pipegap", "Use", "Understand", "Extend"]
    pages = [page for group in [*groups.values()][1:] for entry in group for page in entry.values()]
    assert sorted(pages) == sorted({*pages})
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= {*pages}
