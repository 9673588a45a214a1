"""What a trial's folder says of its end: how, and why. Without torch."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipegap.trainer.base.errors import some
from pipegap.trainer.base.status import Status
from pipegap.trainer.folder import wellformed
from pipegap.trainer.folder.wellformed import Damaged

Row = dict[str, Any]
RESULT = "result.json"
LIST_FAILED = ("pipegap", "list", "status=failed")
"""The command that lists failed trials, each with its reason."""


def trial_folder(config: Mapping[str, Any], trial_id: str) -> Path:
    """The folder of a trial: `out` of its config, or its place in the store."""
    return Path(config["out"] or f"{config['results']}/trials/{trial_id}")


def read_result(folder: Path) -> Row | None:
    """The content of result.json; None if there is none, or it is damaged: the trial runs again."""
    try:
        return wellformed.read(folder / RESULT, wellformed.RESULT)
    except (FileNotFoundError, NotADirectoryError, Damaged):
        return None


def final(result: Row | None) -> Row | None:
    """The result of a trial that does not run again; None if it has none yet, or failed."""
    return None if result is None or result["status"] == Status.FAILED else result


def why_failed(error: str) -> str:
    """The line of an error's text that says most: of a traceback where its message begins, else the
    first."""
    lines = [line for line in error.splitlines() if line.strip()] or ["no reason is recorded"]
    calls = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    message_lines = lines[calls[-1] + 1 :] if calls else []
    return next((line for line in message_lines if not line[0].isspace()), lines[-bool(calls)])


def failures(failed: Iterable[tuple[str, Row]], num_trials: int) -> Iterator[str]:
    """Yield a line per reason why some of so many trials failed: names and results of those."""
    names: dict[str, list[str]] = {}
    for name, result in failed:
        names.setdefault(why_failed(result.get("error") or ""), []).append(name)
    for why, those in names.items():
        yield f"{len(those)} of {num_trials} failed: {why} ({some(those)})"
