"""A sweep file that is in order, and the line that a malformed one is refused with."""

from pathlib import Path

import pytest

from sweeps.__main__ import main

GRID = """\
  optimizer: [adamw, muon]
  optimizer.lr: [0.01, 0.02]
"""
GOOD = f"""\
base: [batch_size=4, seq_len=16, num_updates=12]
scales: {{few_updates: [eval_every=6]}}
grid:
{GRID}\
arms:
  sync: [pipeline=sync]
  delay: [pipeline=pipedream_2bw]
  delay_ef: [pipeline=pipedream_2bw, correction=error_feedback]
seeds: [0, 1]
early_stop: {{margin: 0.5}}
verdict: none
"""

Malformed = tuple[str, str, str]
"""A text of the good file, what takes its place, and parts of the message, with … between."""


def refusal_of_file(malformed: Malformed, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line; the file is in `folder`, in which nothing else was left."""
    old, new, _ = malformed
    assert old in GOOD
    path = folder / "mine.yaml"
    path.write_bytes(GOOD.replace(old, new, 1).encode(errors="surrogateescape"))
    error = refusal([f"sweep={path}"], folder / "store", capsys)
    assert list(folder.iterdir()) == [path]
    return error


def refusal(words: list[str], store: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line; checks that nothing else was left."""
    assert main([*words, f"results={store}"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert not captured.out
    assert not store.exists()
    return captured.err
