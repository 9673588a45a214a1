"""What stores and people's own configs depend on stays: addresses of choices, and ids of trials."""

import hashlib
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipegap.trainer.base.build import published
from pipegap.trainer.base.places import CODE_ROOT, CONF
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.identity import trial_id, version_of
from pipegap.trainer.config.names import is_choice

FROZEN = [
    json.loads(line) for line in Path(__file__).with_name("frozen.jsonl").read_text().splitlines()
]
"""Words, the id of their trial on the wiki text, and of its config the whole, for no word, or the
node of what the word chooses; of a scale only the id."""

WIKI = "587fbfc6c2e2707943a6e2eb44c75a6467f161234b5e6fe0bcfea79f4f9dbe1e"
"""Hash of the prepared wiki text, of which the published trials are."""
TINY = (
    *("model=tiny", "data=wiki", "batch_size=16", "seq_len=128", "eval_every=100"),
    "optimizer.lr=0.004",
)
DELAY = "pipeline=pipedream_2bw"
FEEDBACK = "correction=error_feedback"
STAGES = (DELAY, "pipeline.num_stages=2", "pipeline.num_microbatches=2")
IDS = {
    "48a0eba182ade3a2": ("num_updates=400",),  # tiny_trials.csv
    "a749e5e20d48f749": ("num_updates=400", "optimizer=muon", "seed=2"),  # tiny_trials.csv
    "ed88bdaa62586840": ("num_updates=400", "optimizer=muon", DELAY, "seed=1"),  # tiny_trials.csv
    "2c935ac5ff7c76a9": ("num_updates=400", DELAY, FEEDBACK, "seed=2"),  # tiny_trials.csv
    "373895ca2525fcb3": (  # advice_trials.csv
        *("num_updates=450", "optimizer=muon", DELAY, FEEDBACK, "seed=1"),
    ),
    "02e516d2f023b452": (  # coefficient_trials.csv
        *("num_updates=250", "optimizer=muon", DELAY, FEEDBACK, "seed=1"),
        "correction.coefficient=0.5",
    ),
    "0c6355039820b09a": (  # corrections_trials.csv
        *("num_updates=400", DELAY, "correction=error_feedback_gradient", "seed=2"),
    ),
    "f62bce93e269e1ff": (  # corrections_trials.csv
        *("num_updates=400", DELAY, "correction=taylor", "correction.coefficient=100", "seed=1"),
        "diagnostics=50",
    ),
    "cbb6f96fdb5a0515": (  # momentum_trials.csv
        *("num_updates=250", "optimizer=muon", "optimizer.momentum=0.99", DELAY),
    ),
    "fff215739d37abbf": (  # batch_size_trials.csv
        *("num_updates=400", "optimizer.lr=0.016", "seed=1"),
    ),
    "087961bd10a7eefe": (  # synchronous_start_trials.csv
        *("num_updates=250", "optimizer=mars", "optimizer.lr=0.008", DELAY, "seed=2"),
        "pipeline.synchronous_start=0.1",
    ),
    "fb295acf0c954f2c": (  # optimizers_trials.csv
        *("num_updates=250", "optimizer=nadamw", "optimizer.lr=0.008", DELAY, FEEDBACK, "seed=2"),
    ),
    "096fc16fdcd12997": ("num_updates=400", "compile=true"),
    "36309d1dc256d1f9": ("num_updates=400", "compile=update"),  # COMPILED_FIXES 2
    "20f887f7b25780bd": (
        "num_updates=null",
        "tokens_per_parameter=20",
        "model=smollm2_135m",
        DELAY,
    ),
    "c57e51cd353692c7": (
        *("num_updates=100", "pipeline=constant_delay", "pipeline.delay=3", "diagnostics=10"),
        *("correction=weight_prediction", "data=gcide", "lr_schedule=wsd"),
    ),
}


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda frozen: " ".join(frozen["words"]) or "none")
def test_a_choice_stays_what_it_was(frozen: Any) -> None:
    """Also a new place of its class leaves the address that every config.json of it holds."""
    words = list(chain.from_iterable(map(in_full, frozen["words"])))
    config = compose(words)
    assert {key: config[key] for key in frozen["config"]} == frozen["config"]
    assert trial_id(config, WIKI) == frozen["id"]
    for key, node in frozen["config"].items():
        if is_choice(node):
            chosen = yaml.safe_load((CONF / key / f"{config['choices'][key]}.yaml").read_text())
            assert published(chosen["_target_"]) == node["_target_"]


def in_full(word: str) -> list[str]:
    """The words of a scale; any other word as it is."""
    group, _, name = word.partition("=")
    scale = CONF / "scale" / f"{name}.yaml"
    return yaml.safe_load(scale.read_text())["base"] if group == "scale" else [word]


def test_the_front_page_keeps_its_table() -> None:
    front = (CODE_ROOT / "README.md").read_text()
    of_gaps = front.partition("<!-- table -->\n")[2].partition("\n<!-- end -->")[0]
    table = sorted(of_gaps.splitlines())  # whatever the order of its rows
    digest = hashlib.sha256("\n".join(table).encode()).hexdigest()
    assert digest[:16] == "1830080c3930d13a", "\n".join(table)


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ((), 2),
        (("compile=update",), 4),
        (("model.tied_embeddings=false",), 3),
        (("model.tied_embeddings=false", "compile=update"), 5),
        (("model=tiny_hybrid",), 2),
        (("clip_scope=stage",), 2),
        (("clip_scope=stage", *STAGES), 3),
        (("clip_scope=stage", "pipeline=wpipe"), 3),
        (("clip_scope=stage", *STAGES, "clip_norm=null"), 2),
        (("clip_scope=stage", *STAGES, "model.tied_embeddings=false"), 3),
        (STAGES, 2),
    ],
)
def test_a_fix_of_some_trials_renames_those_alone(words: tuple[str, ...], version: int) -> None:
    """HEAD_FIXES is 1, TIED_CLIP_FIXES is 1, and one rank of WPipe has two stages."""
    given = {word.partition("=")[0]: word for word in (*TINY, "num_updates=9", *words)}
    assert version_of(compose([*given.values()])) == version


def test_layers_is_the_name_of_what_compile_true_was() -> None:
    assert compose([*TINY, "compile=layers"]) == compose([*TINY, "compile=true"])


@pytest.mark.parametrize("expected", IDS)
def test_the_id_of_a_trial_stays(expected: str) -> None:
    words = {word.split("=")[0]: word for word in (*TINY, *IDS[expected])}
    assert trial_id(compose(list(words.values())), WIKI) == expected
