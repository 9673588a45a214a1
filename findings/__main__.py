"""Writes the tables, sentences and figures of README.md and docs/, and what the notebook shows.

All are made from published trials.

    python -m bench.documents
"""

from __future__ import annotations

import warnings

from bench.documents import notebook, pictures
from bench.documents.pages import DOCUMENTS, ROOT, written
from trainer.base.atomic import write_atomically


def main() -> None:
    """Writes the documents and pictures that change, and says which documents."""
    warnings.simplefilter("ignore", UserWarning)  # of commits: a document's trials are of several
    for path in DOCUMENTS:
        text = path.read_text()
        new = written(text)
        if new != text:
            write_atomically(path, new.encode())
            print(f"changed: {path.relative_to(ROOT)}")
    pictures.write()
    notebook.write()


if __name__ == "__main__":
    main()
