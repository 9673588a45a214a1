"""The folder of torch's compiler, in which a process that is killed may leave cut files."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.base.errors import Stopped
from trainer.base.scratch import scratch

WRITTEN_IN_PLACE = {".so", ".gch"}
"""What g++ writes under its last name, so that it may be cut; torch renames all other files."""


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
