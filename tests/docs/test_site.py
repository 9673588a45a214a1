"""The documentation site builds without a warning."""

from pathlib import Path

import pytest
import yaml

from tests.support.markdown import ROOT
from tests.support.processes import python


class _Tagged(yaml.SafeLoader):
    """Reads `!ENV […]` as None."""


_Tagged.add_constructor("!ENV", lambda loader, node: None)


@pytest.mark.long
def test_it_builds_and_links_to_every_page_of_the_repository(tmp_path: Path) -> None:
    """Where links lead is in test_links.py."""
    done = python("-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    front = (tmp_path / "index.html").read_text()
    assert 'href="docs/semantics/"' in front
    assert "../bench/" in (tmp_path / "docs" / "pipeline" / "index.html").read_text()


def test_its_three_groups_name_every_page_of_docs() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), _Tagged)
    groups = {name: pages for entry in config["nav"] for name, pages in entry.items()}
    assert [*groups] == ["pipegap", "Use", "Understand", "Extend"]
    pages = [page for group in [*groups.values()][1:] for entry in group for page in entry.values()]
    assert sorted(pages) == sorted({*pages})
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= {*pages}
