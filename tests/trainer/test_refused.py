"""Places and sizes that a trial cannot use are refused in a line that names the word given."""

import os
import sys
from pathlib import Path

import pytest

from tests.support import small
from tests.support.refusals import Refused
from trainer.__main__ import main

REFUSED = {
    "results=loop": "results=loop: must be a folder, not a loop of links",
    "out=loop": "out=loop: must be a folder, not a loop of links",
    "results=file": "results=file: must be a folder, not a file",
    "out=file": "out=file: must be a folder, not a file",
    "resume_from=pipe": "resume_from=pipe: must be a checkpoint-*.pt of an unfinished trial",
    "model.hidden_size=200000 model.num_heads=4": "device=cpu: has ",
    "data=text data.path=deep.jsonl": "must have one JSON object per line (line 1: maximum recur",
}


@pytest.mark.parametrize("words", REFUSED)
def test_it_is_refused(
    words: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "deep.jsonl").write_text("[" * 100_000 + "\n")
    monkeypatch.setattr(sys, "argv", ["trainer", *small.overrides(tmp_path), *words.split()])
    assert REFUSED[words] in refused(main)
