"""What stores and people's own configs depend on stays: addresses of choices, and ids of trials."""

import pytest
import yaml

from trainer.base.build import locate
from trainer.base.places import CONF
from trainer.config.compose import compose
from trainer.config.identity import trial_id, version_of

OPTIMIZERS = (
    *("adamuon", "adamw", "adan", "ademamix", "adopt", "dion", "kron", "lion", "mars", "muon"),
    *("nadamw", "normuon", "schedule_free_adamw", "scion", "sgd", "sgdw", "shampoo", "signum"),
    *("soap", "sophia"),
)
SCHEDULES = (
    *("constant_delay", "gpipe", "interleaved_1f1b", "pipedream", "pipedream_2bw", "sync"),
    "zero_bubble_h1",
)
CORRECTIONS = {
    "adaptive_error_feedback": "adaptive_error_feedback.AdaptiveErrorFeedback",
    "error_feedback": "error_feedback.ErrorFeedback",
    "error_feedback_gradient": "error_feedback_gradient.GradientErrorFeedback",
    "learning_rate": "learning_rate.LearningRate",
    "matched_error_feedback": "matched_error_feedback.MatchedErrorFeedback",
    "none": "none.NoCorrection",
    "taylor": "taylor.Taylor",
    "weight_prediction": "weight_prediction.WeightPrediction",
}
ADDRESSES = {
    **{("optimizer", name): f"trainer.optimizers.{name}" for name in OPTIMIZERS},
    **{("pipeline", name): f"trainer.schedules.{name}" for name in SCHEDULES},
    **{("correction", name): f"trainer.corrections.{of}" for name, of in CORRECTIONS.items()},
    **{
        ("lr_schedule", name): f"trainer.lr.{name}"
        for name in ("constant", "cosine", "inverse_sqrt", "linear", "wsd")
    },
    **{
        ("model", name): "trainer.models.llama.Llama"
        for name in ("nano", "smollm2_135m", "smollm2_360m", "tiny", "tiny_deep")
    },
    **{
        ("data", name): "trainer.data.shards.Prepared"
        for name in ("fineweb", "fineweb_edu", "gcide", "wiki", "wiki_bpe")
    },
    **{
        ("model", name): "trainer.models.qwen3_moe.Qwen3Moe"
        for name in ("micro_moe", "moe_2b", "tiny_moe")
    },
    **{
        ("model", name): "trainer.models.qwen3_next.Qwen3Next"
        for name in ("hybrid_10b", "tiny_hybrid")
    },
    ("data", "bins"): "trainer.data.bins.Bins",
    ("optimizer", "adamh"): "trainer.optimizers.hyperball.adamh",
    ("optimizer", "basis_rotation"): "trainer.optimizers.basis_rotation.basis_rotation",
    ("optimizer", "muonh"): "trainer.optimizers.hyperball.muonh",
    ("optimizer", "nanochat"): "trainer.optimizers.nanochat.nanochat",
    ("optimizer", "normuonh"): "trainer.optimizers.hyperball.normuonh",
    ("pipeline", "dualpipe_v"): "trainer.schedules.recipes.dualpipe_v",
    ("pipeline", "zero_bubble_v"): "trainer.schedules.recipes.zero_bubble_v",
}
"""Group and choice → the address that every config.json of it holds."""

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
    "86c85dbacd84b4ba": ("num_updates=400", "compile=update"),  # COMPILED_FIXES 1
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


@pytest.mark.parametrize(("group", "choice"), ADDRESSES)
def test_the_address_of_a_choice_stays_importable(group: str, choice: str) -> None:
    address = ADDRESSES[group, choice]
    node = yaml.safe_load((CONF / group / f"{choice}.yaml").read_text())
    assert node["_target_"] == address
    assert callable(locate(address))


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ((), 2),
        (("compile=update",), 3),
        (("model.tied_embeddings=false",), 3),
        (("model.tied_embeddings=false", "compile=update"), 4),
        (("model=nanogpt", "model.vocab_size=257"), 3),
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
    """HEAD_FIXES is 1, and modded-nanogpt has no key that says that its head is its own.
    TIED_CLIP_FIXES is 1, and one rank of WPipe has two stages."""
    given = {word.partition("=")[0]: word for word in (*TINY, "num_updates=9", *words)}
    assert version_of(compose([*given.values()])) == version


def test_layers_is_the_name_of_what_compile_true_was() -> None:
    assert compose([*TINY, "compile=layers"]) == compose([*TINY, "compile=true"])


@pytest.mark.parametrize("expected", IDS)
def test_the_id_of_a_trial_stays(expected: str) -> None:
    words = {word.split("=")[0]: word for word in (*TINY, *IDS[expected])}
    assert trial_id(compose(list(words.values())), WIKI) == expected
