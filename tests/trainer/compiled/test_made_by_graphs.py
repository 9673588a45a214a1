"""A plan knows by names and options what graphs make, and a stage by what was built."""

import pytest

from bench.steps import executor, resolved
from tests.support.every_optimizer import NAMES
from trainer.base.errors import BadInput
from trainer.base.places import CONF
from trainer.compiled.stage import CompiledStage
from trainer.config.combinations import OBSERVERS, require_graphs

SMALL = (
    *("model=nano", "model.num_layers=1", "model.hidden_size=16", "model.intermediate_size=24"),
    *("model.vocab_size=30", "batch_size=4", "seq_len=8", "pipeline=pipedream_2bw"),
)
READS_AHEAD = "weight_prediction"
CHOICES = [
    *((f"optimizer={name}",) for name in NAMES if name not in OBSERVERS),
    ("optimizer=muon", "optimizer.orthogonalisation=polar_express"),
    ("optimizer=muon", "optimizer.cautious_decay=true"),
    ("optimizer=muon", "optimizer.nesterov=false", "optimizer.newton_schulz_steps=3"),
    ("optimizer=normuon", "optimizer.scaling=preserve_norm"),
    *(
        (f"correction={path.stem}",)
        for path in sorted((CONF / "correction").glob("*.yaml"))
        if path.stem != READS_AHEAD
    ),
    ("correction=error_feedback", "correction.lag=delay"),
    ("correction=error_feedback", "correction.coefficient=2"),
    ("correction=matched_error_feedback", "correction.lag=delay"),
]
"""Those that `compile=update` refuses are left out."""


@pytest.mark.parametrize("words", CHOICES, ids=" ".join)
def test_a_plan_and_a_stage_agree(words: tuple[str, ...]) -> None:
    config = resolved([*SMALL, *words, "compile=update"])
    [stage] = executor(config).stages
    assert isinstance(stage, CompiledStage)
    try:
        require_graphs(config)
        is_whole = True
    except BadInput:
        is_whole = False
    assert is_whole == (not stage.without_graph)
