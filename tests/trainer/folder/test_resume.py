"""A trial goes on with other stages and in another executor as if it had been so all the time."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.identity import made_by
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.folder import checkpoint
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.trials import assert_same_end, checkpoint_after_5, rows, untimed

LIKE = (
    "model.num_layers=4",
    "pipeline=pipedream_2bw",
    "correction=error_feedback",
    "pipeline.num_microbatches=4",
    "save_final=true",
)
LAYOUTS = {
    "two ranks": ("runner=pipelined", "pipeline.num_stages=2"),
    "four ranks": ("runner=pipelined", "pipeline.num_stages=4"),
    "three emulated": ("pipeline.num_stages=3",),
}


def config(folder: Path, layout: str, name: str, *words: str) -> dict[str, Any]:
    out = f"out={folder / name}"
    return small.config(folder, *LIKE, *LAYOUTS[layout], out, *words)


def stopped(folder: Path, layout: str, *words: str) -> Path:
    return checkpoint_after_5(config(folder, layout, "stopped", *words))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("two ranks", "four ranks", ["optimizer=adamw"]),
        pytest.param("four ranks", "two ranks", ["optimizer=muon"], marks=pytest.mark.slow),
        ("three emulated", "two ranks", ["optimizer=muon", "dtype=bfloat16"]),
        ("two ranks", "three emulated", ["optimizer=sgd"]),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_other_stages_go_on_exactly(
    tmp_path: Path, before: str, after: str, words: list[str]
) -> None:
    path = stopped(tmp_path, before, *words)
    expected = run_trial(config(tmp_path, after, "whole", *words))
    result = run_trial(config(tmp_path, after, "resumed", *words, f"resume_from={path}"))
    assert result.pop("trial_id") != expected.pop("trial_id")
    assert untimed(result) == untimed(expected)
    assert len(rows(tmp_path / "resumed")) == 7
    assert_same_end(tmp_path, "resumed", "whole")


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The working folder of a trial that did not go on, and its checkpoint."""
    folder = tmp_path_factory.mktemp("unfinished")
    path = stopped(folder, "three emulated")
    (folder / "altered").mkdir()
    (folder / "altered" / path.name).write_bytes(path.read_bytes()[:-100])
    return folder, path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["optimizer.lr=0.02"], "is of a trial with optimizer="),
        (["pipeline=sync", "correction=error_feedback"], "has 2 versions, 1 are needed"),
        (["resume_from=nowhere.pt"], "must be a checkpoint"),
        (["resume_from={0}/altered/{1.name}"], r"is truncated or altered: choose another$"),
    ],
)
def test_what_would_not_be_the_same_trial_is_refused(
    unfinished: tuple[Path, Path], words: list[str], says: str
) -> None:
    folder, path = unfinished
    given = (f"resume_from={path}", *(word.format(*unfinished) for word in words))
    with pytest.raises(BadInput, match=says):
        run_trial(config(folder, "three emulated", "other", *given))
    assert not (folder / "other").exists()


def test_the_id_does_not_depend_on_the_attempt_that_saved(tmp_path: Path) -> None:
    """A checkpoint gets another name when its trial is resumed; ids made before stay."""
    ids = set()
    for name in ("000000005-0123456789abcdef", "000000005-000002-0123456789abcdef"):
        path = f"resume_from=elsewhere/checkpoint-{name}.pt"
        ids.add(plan_trial(config(tmp_path, "three emulated", "resumed", path)).trial_id)
    assert len(ids) == 1


def test_it_resumes_from_a_checkpoint_and_an_attempt_of_older_code(tmp_path: Path) -> None:
    """Which had no attempt in the name, and did not note what made them."""
    out = tmp_path / "stopped"
    path = stopped(tmp_path, "three emulated")
    updates, _, digest = path.stem.removeprefix("checkpoint-").split("-")
    path.rename(out / f"checkpoint-{updates}-{digest}.pt")
    noted = out / "attempt-000001.json"
    attempt = json.loads(noted.read_text())
    older = {key: value for key, value in attempt.items() if key not in ("git", "versions")}
    noted.write_text(json.dumps(older))
    result = run_trial(config(tmp_path, "three emulated", "stopped"))
    expected = run_trial(config(tmp_path, "three emulated", "whole"))
    assert untimed(result) == untimed(expected)
    assert rows(out) == rows(tmp_path / "whole")
    first, second = result["attempts"]
    assert (first["from_update"], first["git"]) == (0, None)
    assert (second["from_update"], second["git"]) == (5, result["git"])


def test_a_checkpoint_says_what_made_it(unfinished: tuple[Path, Path]) -> None:
    assert checkpoint.load(unfinished[1])["made_by"] == made_by("cpu")
    assert made_by("cpu").keys() == {"git", "versions", "device_name"}
