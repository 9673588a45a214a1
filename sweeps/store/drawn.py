"""What the last report of a sweep was made of, and what it printed: an unchanged one is not made
again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from trainer.base.atomic import write_json

FILE = ".made_of.json"
PAGE = "index.html"


def state(record: Mapping[str, Any], folders: Iterable[Path], version: str | None) -> str:
    """A hash of what a report is made of: the sweep's record, without its costs, the results of its
    trials, and the `version` of the code, which counts as another one each time if it is not that
    of a commit or a release."""
    costs = ("trials", "words")
    plan = {key: value for key, value in record.items() if key not in costs}
    results = sorted((folder.name, _modified(folder / "result.json")) for folder in folders)
    code = token_hex() if version is None or version.endswith("-dirty") else version
    whole = json.dumps([plan, sorted(record["trials"]), results, code], default=str)
    return hashlib.sha256(whole.encode()).hexdigest()


def _modified(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def printed(out: Path, now: str) -> str | None:
    """What the report in `out` printed; None unless it is there and made of the state `now`."""
    with suppress(OSError, ValueError, LookupError):
        last = json.loads((out / FILE).read_text())
        if (out / PAGE).is_file() and last["state"] == now:
            return str(last["printed"])
    return None


def note(out: Path, now: str, text: str) -> None:
    """Notes what the report in `out` was made of, and what it printed."""
    write_json(out / FILE, {"state": now, "printed": text})
