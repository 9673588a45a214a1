"""Whether torch can compile, and its folder, in which a killed process may leave cut files."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipegap.trainer.base.errors import BadInput, Stopped
from pipegap.trainer.base.scratch import scratch

WRITTEN_IN_PLACE = {".so", ".gch"}
"""What g++ writes under its last name, so that it may be cut; torch renames all other files."""


def compiler() -> str:
    """The name of the C++ compiler that torch's compiler would take itself."""
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")


def require_compiler() -> None:
    """Raise BadInput if torch cannot compile for this machine's CPU: it needs a C++ compiler and
    Python's headers."""
    program = compiler()
    headers = Path(sysconfig.get_path("include"), "Python.h")
    for what, is_there in (
        (f"a C++ compiler, {program}", shutil.which(program) is not None),
        (f"Python's headers, {headers}", headers.is_file()),
    ):
        if not is_there:
            allowed = f"needs {what}, which this machine does not have; compile=false does without"
            raise BadInput("compile", "update", allowed)


@contextmanager
def compiling() -> Iterator[None]:
    """Lets this process compile; what killed processes may have left cut is deleted before.

    torch takes a library that is in its folder (TORCHINDUCTOR_CACHE_DIR) for a whole one. A cut one
    would fail every later process, or make the compiler believe that the processor has no vectors.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # imports the compiler

    folder = Path(cache_dir())

    def delete_since(mark: Path) -> None:
        since = mark.stat().st_mtime_ns
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.suffix in WRITTEN_IN_PLACE and path.stat().st_mtime_ns >= since:
                    path.unlink()

    with scratch(folder, "pipegap-", delete_since) as mark:
        try:
            yield
        except Stopped:  # nothing was cut
            mark.rmdir()
            raise
