"""A wrong word of `pipegap report` is refused in one line, and nothing is written."""

from pathlib import Path

import pytest

from pipegap.analysis.__main__ import main
from tests.support.processes import Refused, name_of
from tests.support.synthetic_store import write_arms

LONG = "x" * 300
ADVISE = "advise optimizer=muon stages=4 microbatches=8"

# words → what the one line has
BAD = {
    "out": "out=: must be key=value",
    "out=": "out=: must have a value",
    "oot=a": "oot=a: is not a key of this command",
    "results=nowhere": "results=nowhere: must be a folder",
    f"results={LONG}": "must be a path of at most",
    "advise": "stages=: must say how many stages the pipeline has, e.g. stages=4\n",
    "advise stages=4": "microbatches=: must say how many microbatches a batch has, e.g.",
    "advise stages=0": "stages=0: must be a whole number from 1 to",
    "advise stages=2.5": "stages=2.5: must be a whole number",
    f"{ADVISE} updates=-1": "updates=-1: must be a whole number",
    f"{ADVISE} format=xml": "format=xml: must be text or json",
    f"{ADVISE} forward=1,2": "forward=1,2: must be 0 or a number from 1e-09 to 1e+09, or 4, o",
    f"{ADVISE} forward=0": "forward=0: must be above 0",
    f"{ADVISE} results=nowhere": "results=nowhere: must be a folder",
    f"{ADVISE} batch_size=32": "optimizer=muon: must be one that there are trials of",
    f"{ADVISE} optimiser.lr=1": "optimiser.lr=1: ",
    f"{ADVISE} activations=3": "activations=3: must be 4 or more",
    f"{ADVISE} chunks=17": "chunks=17: must be a whole number from 1 to 16",
    f"{ADVISE} updates=399": "updates=399: ",
    "advise optimizer=muon stages=4 microbatches=2": "microbatches=2: 2BW needs at least stages",
    "advise stages=5 microbatches=8 forward=tiny": "stages=5: must not exceed model.num_layers=4",
    "stability delay=1.5": "delay=1.5: must be a whole number from 0 to 32",
    "stability k=0": "k=0: must be above 0",
    "stability updates=-1": "updates=-1: must be a whole number",
    "stability format=xml": "format=xml: must be text or json",
    "stability stages=4": "stages=4: is not a key of this command",
    "stability optimizer.momentum=0.9": "optimizer=: must say whose settings these are",
    "stability optimizer=muon optimizer.momentum=1": "optimizer.momentum=1: must be less than 1",
    "stability optimizer=moun": "optimizer=moun: must be one of muon",
    "stability optimizer=dion": "optimizer=dion: is not linear",
    "stability correction=learning_rate": "correction=LearningRate: has no fixed recursion",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("store")
    write_arms(made, {"sync": [1.0, 1.1], "delay": [1.2, 1.3]}, optimizer="muon")
    return made


@pytest.mark.parametrize("words", BAD, ids=name_of)
def test_a_wrong_word_is_refused_in_one_line(
    words: str, store: Path, tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "results").symlink_to(store)
    assert BAD[words] in refused(lambda: main(words.split(" ")))
