"""A plan knows by names and options what graphs make, and a stage by what was built."""

import pytest

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CONF
from pipegap.trainer.compiled.stage import CompiledStage
from pipegap.trainer.config.combinations import require_graphs
from tests.support.every_optimizer import NAMES
from tests.support.smallest import DENSE, config, trainer

READS_AHEAD = "weight_prediction"
CHOICES = [
    *((f"optimizer={name}",) for name in NAMES),
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
    given = (*DENSE, "pipeline=pipedream_2bw", *words, "compile=update")
    [stage] = trainer(*given).stages
    assert isinstance(stage, CompiledStage)
    try:
        require_graphs(config(*given))
        is_whole = True
    except BadInput:
        is_whole = False
    assert is_whole == (not stage.without_graph)
