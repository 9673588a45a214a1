"""What names the code that runs: a commit, or the release of an installed wheel."""

from __future__ import annotations

import os
from importlib.metadata import distributions
from pathlib import Path
from subprocess import CalledProcessError, run

from trainer.base.places import CODE_ROOT

COMMIT = "PIPEGAP_COMMIT"
"""Environment variable that names the commit of a source tree that is a copy without git."""


def code_version() -> str | None:
    """Return a name for the source code that runs; None if there is none.

    In a git repository: its commit, with `-dirty` if the tree was changed. In a copy without git:
    the value of `PIPEGAP_COMMIT`. Installed from a wheel: e.g. "pipegap 0.1.0".
    """
    return _commit() or os.environ.get(COMMIT) or _release()


def _commit() -> str | None:
    """Return the commit of the repository that tracks this file; None without such a repository.

    An installed copy may lie inside a repository that does not track the copy.
    """
    here = Path(__file__)
    tracks = ["git", "ls-files", "--error-unmatch", here.name]
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        run(tracks, cwd=here.parent, check=True, capture_output=True)
        done = run(describe, cwd=here.parent, check=True, capture_output=True, text=True)
    except (CalledProcessError, FileNotFoundError):
        return None
    return done.stdout.strip()


def _release() -> str | None:
    """Return name and version of the installed package that has this file; None without one.

    Another copy of the package may be installed too.
    """
    here = Path(__file__)
    for package in distributions(name="pipegap"):
        if Path(str(package.locate_file(here.relative_to(CODE_ROOT)))).resolve() == here.resolve():
            return f"pipegap {package.version}"
    return None
