"""Odd sweep files are refused in one line, or priced; either leaves nothing behind."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.request.schema import Sweep
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.schema import TrialConfig
from tests.support import fuzzing, odd, small

SMALL = f"""\
base: [{", ".join(small.SMALL)}]
scales: {{micro: [eval_every=6]}}
grid:
  optimizer: [adamw, muon]
  shape: [{{batch_size: 8, seq_len: 16}}, {{batch_size: 4, seq_len: 32}}]
arms:
  sync: [pipeline=sync]
  delay_ef: [pipeline=pipedream_2bw, correction=error_feedback]
seeds: [0, 1]
tune: {{optimizer.lr: [0.5, 1, 2]}}
early_stop: {{margin: 0.5}}
advice: {{stages: 2, microbatches: 2, arms: [delay_ef]}}
verdict: none
"""
QUICK = ("main", "gradient_feedback")
"""Sweeps whose plan is made in a fraction of a second."""
FILES = [SMALL, *((CONF / "sweep" / f"{name}.yaml").read_text() for name in QUICK)]


@st.composite
def files(draw: odd.Draw) -> bytes:
    """The text of a file changed, or its values; mostly that of the small one."""
    valid = draw(st.sampled_from(FILES)) if draw(st.integers(0, 3)) == 0 else SMALL
    how = draw(st.sampled_from(("values", "values", "text", "bytes", "any")))
    if how == "values":
        return _dumped(draw(odd.trees(yaml.safe_load(valid))))
    if how == "text":
        return draw(odd.texts(valid)).encode(errors="replace")
    if how == "bytes":
        return draw(odd.contents(valid.encode()))
    return draw(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))


def _dumped(tree: Any) -> bytes:
    return yaml.dump(tree, allow_unicode=True, sort_keys=False).encode(errors="replace")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    small.corpus(folder)
    (folder / "a.yaml").write_text(SMALL)
    [ended] = fuzzing.warm((main, words(folder)))
    assert ended.code == 0
    return folder


def words(folder: Path) -> list[str]:
    places = [f"sweep={folder}/a.yaml", f"data.path={folder}/corpus", f"results={folder}/store"]
    return [*places, "scale=micro", "dry_run=true"]


@fuzzing.inputs(40, "sweep files")
@given(content=files())
def test_of_any_content(place: Path, content: bytes) -> None:
    fuzzing.count("sweep files", lambda: check(place, content))


def check(place: Path, content: bytes) -> fuzzing.Ended:
    (place / "a.yaml").write_bytes(content)
    before = fuzzing.tree(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        found = fuzzing.run(main, words(place))
    named = {
        "sweep",
        *Sweep.model_fields,
        *TrialConfig.model_fields,
        *re.findall(r"[\w.]+", content.decode(errors="replace")),
    }
    fuzzing.require_one_line(found, "pipegap sweep", named)
    assert fuzzing.tree(place) == before
    return found
