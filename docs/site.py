"""Hooks of mkdocs: the site has the pages where they lie in the repository, not only docs/.

Relative links then work on the site as in a checkout. Code is not on the site: a link to it leads
to the repository, or is its name alone where the repository has no URL.
"""

import re
from pathlib import Path
from posixpath import dirname, join, normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*", "findings/**/*", "bench/*.md")
SHOWN = {".md", ".svg", ".csv", ".json", ".ipynb", ".yaml", ".css"}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the theme, and those of the repository that PAGES and SHOWN choose."""
    docs = Path(config.docs_dir)
    kept = [file for file in files if file.src_dir is None or Path(file.src_dir) != docs]
    paths = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    shown = [path for path in paths if path.is_file() and path.suffix in SHOWN]
    return Files([*kept, *(_file(path, config) for path in shown)])


def _file(path: Path, config: MkDocsConfig) -> File:
    return File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text with each link to a file that the site does not have replaced."""

    def leading(link: re.Match[str]) -> str:
        words, path, _ = link.groups()
        target = normpath(join(dirname(page.file.src_uri), path))
        if target in files.src_uris or not (ROOT / target).exists():
            return link[0]  # a link that leads nowhere stays, for mkdocs to complain of
        return f"[{words}]({config.repo_url}/blob/main/{target})" if config.repo_url else words

    return LINK.sub(leading, markdown)
