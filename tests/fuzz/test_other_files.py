"""Files that people bring: tables of trials, weights and code of their own."""

import json
import shutil
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import load
from analysis.__main__ import main as analysis
from tests.support import fuzzing, odd, small
from tests.support.synthetic_store import LOSSES, write_arms
from trainer.__main__ import main as trainer
from trainer.base import code
from trainer.trial import run_trial

READERS = {
    "advise": ["advise", "optimizer=adamw", "stages=2", "microbatches=4"],
}
STATEMENTS = (
    *("sys.exit(0)", "sys.exit('x' * 9999)", "sys.exit('\\n')", "os._exit(0)", "raise SystemExit"),
    *("while True: pass", "raise ValueError('a\\nb')", "raise ValueError('\\ud800')", "1 / 0"),
    *("import nowhere", "def", "return 5", "os.abort = sys.exit; os.abort(1)", "raise MemoryError"),
    *("x = []; x.append(x)", "raise BaseException('b')", "raise GeneratorExit", "del sys", "0"),
    *("raise type('E', (Exception,), {'__str__': lambda e: 1 / 0})()", "class A(A): pass"),
)
GROUPS = ("model", "data", "optimizer", "correction", "lr_schedule", "pipeline")


class Place(NamedTuple):
    """A folder with a table, a model's files and a config."""

    folder: Path
    table: bytes
    weights: bytes

    def __repr__(self) -> str:
        """Short, for hypothesis prints it."""
        return f"Place({self.folder})"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("files")
    write_arms(folder / "store", LOSSES)
    load(folder / "store").to_csv(folder / "trials.csv", index=False)
    words = ["num_updates=1", "eval_every=1", f"out={folder / 'whole'}", "save_final=true"]
    run_trial(small.config(folder, *words))
    shutil.move(folder / "whole" / "final", folder / "final")
    words[2:] = [f"out={folder / 'out'}", f"from_pretrained={folder / 'final'}"]
    (folder / "config.json").write_text(json.dumps(small.config(folder, *words)))
    fuzzing.warm(*((analysis, [*words, f"results={folder}/store"]) for words in READERS.values()))
    weights = (folder / "final" / "model.safetensors").read_bytes()
    return Place(folder, (folder / "trials.csv").read_bytes(), weights)


@fuzzing.inputs(10, *(f"table, `{name}`" for name in READERS))
@given(data=st.data())
def test_of_any_table(place: Place, data: st.DataObject) -> None:
    valid = place.table
    text = odd.texts(valid.decode()).map(lambda text: text.encode(errors="replace"))
    content = data.draw(text | odd.contents(valid), "content")
    (place.folder / "trials.csv").write_bytes(content)
    name = data.draw(st.sampled_from([*READERS]), "command")
    words = [*READERS[name], f"results={place.folder / 'trials.csv'}"]
    fuzzing.count(f"table, `{name}`", lambda: check_table(words))


def check_table(words: Sequence[str]) -> fuzzing.Ended:
    found = fuzzing.run(analysis, words)
    fuzzing.require_few_lines(found, 2)
    return found


@st.composite
def headers(draw: odd.Draw, valid: bytes) -> bytes:
    """Weights in a file whose header is changed, or says another length."""
    (length,) = struct.unpack("<Q", valid[:8])
    head, rest = valid[8 : 8 + length], valid[8 + length :]
    kind = draw(st.sampled_from(("bytes", "length", "values")))
    if kind == "bytes":
        return draw(odd.contents(valid))
    if kind == "length":
        lengths = st.sampled_from((0, 1, length - 1, length + 1, 2**31, 2**40, 2**63, 2**64 - 1))
        return struct.pack("<Q", draw(lengths)) + head + rest
    changed = json.dumps(draw(odd.trees(json.loads(head)))).encode()
    return struct.pack("<Q", len(changed)) + changed + rest


@fuzzing.inputs(4, "weights", share=0.2)
@given(data=st.data())
def test_of_any_weights(place: Place, data: st.DataObject) -> None:
    (place.folder / "final" / "model.safetensors").write_bytes(data.draw(headers(place.weights)))
    fuzzing.count("weights", lambda: check_trial(place, place.folder / "config.json"))


@fuzzing.inputs(6, "code", share=0.2)
@given(data=st.data())
def test_of_any_code(place: Place, data: st.DataObject) -> None:
    """Whatever it does when it is imported or called makes no choice of a trial."""
    (statement, before), group = data.draw(
        st.tuples(st.tuples(st.sampled_from(STATEMENTS), st.booleans()), st.sampled_from(GROUPS))
    )
    module = f"fuzzed_{uuid4().hex}"
    mine = place.folder / module
    mine.mkdir()
    inside = f"def make(*_, **__):\n    {statement}\n"
    (mine / f"{module}.py").write_text(f"import os, sys\n{statement if before else inside}\n")
    config = json.loads((place.folder / "config.json").read_text())
    config |= {"code": str(mine), "choices": None, "from_pretrained": None}
    config[group] = {"_target_": f"{module}.make"}
    path = mine / "config.json"
    path.write_text(json.dumps(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "WITHIN", 0.2)
        patch.setattr(sys, "path", [*sys.path])
        fuzzing.count("code", lambda: check_trial(place, path))
    shutil.rmtree(mine)


def check_trial(place: Place, config: Path) -> fuzzing.Ended:
    found = fuzzing.run(trainer, ["--config", str(config)], 20)
    shutil.rmtree(place.folder / "out", ignore_errors=True)
    assert found.code in (0, 2), found
    fuzzing.require_few_lines(found, 3 if found.code == 0 else 1)
    return found
