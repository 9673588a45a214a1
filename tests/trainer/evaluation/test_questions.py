"""Questions as lm-eval's tasks put them, on the benchmarks of the package or of one's own."""

import json
from pathlib import Path

import pytest

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.data.benchmarks import BENCHMARKS, FOLDER, MANIFEST, prepare
from pipegap.trainer.evaluation.questions import questions
from tests.support import asked

pytest.importorskip("lm_eval", reason="needs the extra [evaluation]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
prepared = pytest.mark.skipif(
    not (FOLDER / MANIFEST).is_file(), reason="needs `make data-evaluation`, of 86 MB"
)
SIZES = {
    "mmlu": 14_042,
    "hellaswag": 10_042,
    "piqa": 1_838,
    "arc_easy": 570,
    "arc_challenge": 299,
    "boolq": 3_270,
    "openbookqa": 500,
    "copa": 100,
    "winogrande": 1_267,
}


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    found = questions(str(asked.write_task(tmp_path)), limit=5)
    assert found.task == "sums"
    assert [one.gold for one in found.items] == [0, 1, 2, 0, 1]
    assert found.items[1].requests[1] == ("1 times 2 is", " nothing")
    assert found.hash != questions(str(asked.write_task(tmp_path)), limit=4).hash


def test_tasks_that_cannot_be_asked_are_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="must be a task file that is there"):
        questions(str(tmp_path / "none.yaml"))
    with pytest.raises(BadInput, match="holds no copa: `make data-evaluation` prepares it"):
        questions("copa", str(tmp_path))
    writes = asked.write_task(tmp_path, "writes", "generate_until")
    with pytest.raises(BadInput, match="must be a task of multiple choice"):
        questions(str(writes))
    many = asked.write_task(tmp_path, "many")
    many.write_text(many.read_text().replace("doc_to_target: right", "doc_to_target: '{{[0, 1]}}'"))
    with pytest.raises(BadInput, match="must have one right choice"):
        questions(str(many))


@prepared
def test_every_benchmark_of_table_4_is_there_whole_with_its_licence() -> None:
    content = json.loads((FOLDER / MANIFEST).read_text())
    assert (
        {name: of["questions"] for name, of in content.items()}
        == SIZES
        == dict.fromkeys(BENCHMARKS, 0) | SIZES
    )
    text = prepare(Path("nowhere"))
    assert all(of.license in text and of.source in text for of in BENCHMARKS.values())
    assert "MMLU-Pro is on the hub only" in text


@prepared
@pytest.mark.parametrize(
    ("name", "context", "answer"),
    [
        ("copa", "The man turned on the faucet therefore", "  water flowed from the spout."),
        ("boolq", "Answer:", " yes"),
        ("winogrande", "Sarah was a much better surgeon than Maria so Maria", " always got"),
        ("openbookqa", "known as", " Deep sea animals"),
    ],
)
def test_they_are_asked_in_lm_eval_s_words(name: str, context: str, answer: str) -> None:
    found = questions(name, limit=3)
    right = [one.requests[one.gold] for one in found.items]
    assert any(of.endswith(context) and said.startswith(answer) for of, said in right), right


@prepared
@pytest.mark.slow  # its 57 subjects, and HellaSwag's cleaning of 10,042 rows
def test_the_largest_are_asked_whole() -> None:
    for name in ("mmlu", "hellaswag", "piqa", "arc_easy", "arc_challenge"):
        found = questions(name)
        assert len(found.items) == SIZES[name]
        assert {len(one.requests) for one in found.items} <= {2, 3, 4, 5}


@prepared
def test_an_altered_file_is_noticed(tmp_path: Path) -> None:
    for file in ("copa/validation.arrow", MANIFEST):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes((FOLDER / file).read_bytes())
    assert questions("copa", str(tmp_path), limit=1).items
    with (tmp_path / "copa/validation.arrow").open("ab") as file:
        file.write(b"x")
    with pytest.raises(BadInput, match=r"lost or altered copa/validation\.arrow"):
        questions("copa", str(tmp_path))
