"""Whatever a document points at is there, what it should list is complete, and the site builds."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from tests.support.markdown import DOCUMENTS, FENCE, ROOT, spans
from tests.support.processes import python

LINK = re.compile(r"\]\(([^)\s]+)\)")
IN_CODE = re.compile(r"(pipegap|tests|bench|docs|deploy|findings)/[\w./-]*")
MAP = ROOT / "docs" / "map.md"
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


def prose(document: Path) -> str:
    return FENCE.sub("", document.read_text())


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for link in LINK.findall(prose(document)):
            if link.startswith(("http://", "https://")):
                continue
            path, _, anchor = link.partition("#")
            target = (document.parent / path).resolve() if path else document
            assert target.exists(), f"{document}: {link}"
            assert not anchor or anchor in anchors(target), f"{document}: {link}"


def test_paths_and_tests_in_code_exist() -> None:
    for document in DOCUMENTS:
        for span in spans(document):
            if IN_CODE.fullmatch(span):
                assert (ROOT / span).exists(), f"{document}: {span}"
            if re.fullmatch(r"test_\w+", span):
                assert f"def {span}(" in TESTS, f"{document}: {span}"


def test_the_map_names_what_its_files_define() -> None:
    """Each name in code belongs to the file that is linked before it."""
    defined, num_names = list[str](), 0
    for link, span in re.findall(r"\]\(\.\./(\S+\.py)\)|`([A-Za-z_.]+)`", prose(MAP)):
        if link:
            defined, file = definitions(ROOT / link), link
        elif "." not in span or span[0].isupper():
            assert span in defined, f"{span}: not in {file}"
            num_names += 1
    assert num_names > 40


def definitions(path: Path) -> list[str]:
    """The names that a module defines; of its classes those of their methods too."""
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        if isinstance(node, ast.ClassDef):
            names += [
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef)
            ]
    return names


def test_the_readme_lists_every_page() -> None:
    linked = set(LINK.findall(prose(ROOT / "README.md")))
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= linked


@pytest.mark.parametrize(
    ("group", "page"),
    [("pipeline", "trial"), ("correction", "semantics"), ("tracking", "tracking")],
)
def test_every_choice_is_explained(group: str, page: str) -> None:
    """In a row of a table, or as the value of its key."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for path in (ROOT / "pipegap" / "conf" / group).glob("*.yaml"):
        assert f"`{path.stem}`" in text or f"{group}={path.stem}" in text or path.stem == "none"


class _Tagged(yaml.SafeLoader):
    """Reads `!ENV […]` as None."""


_Tagged.add_constructor("!ENV", lambda loader, node: None)


@pytest.mark.long
def test_it_builds_and_links_to_the_pages_of_the_repository(tmp_path: Path) -> None:
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
