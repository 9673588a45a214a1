"""What a trial will evaluate, keep and write is foreseen, against one that ran."""

from pathlib import Path

import pytest

from pipegap.trainer.base.build import build
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.plan import RECORD, plan_trial
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.trials import Stop, stop_at


def test_evaluations_are_foreseen(tmp_path: Path) -> None:
    """Their number is that of a trial that runs, and their tokens are those of the split."""
    config = small.config(tmp_path, "eval_every=5", "num_updates=12")
    run_trial(config)
    [rows] = tmp_path.glob("results/trials/*/metrics.jsonl")
    found = plan_trial(config)
    assert found.num_evaluations == rows.read_text().count("val_loss") == 3
    num_tokens = len(build(config["data"]).open().validation)
    per_token = found.flops / found.tokens / 3  # a forward is a third of forward and backward
    assert found.evaluation_flops == pytest.approx(3 * num_tokens * per_token)
    fewer = plan_trial({**config, "eval_tokens": 16})
    assert fewer.evaluation_flops == pytest.approx((num_tokens + 2 * 16) * per_token)
    missing = {**config, "data": {**config["data"], "path": str(tmp_path / "none")}}
    assert plan_trial(missing).evaluation_flops == 0


DELAY_OF_3 = ("pipeline=constant_delay", "pipeline.delay=3")
LAYOUTS = [
    ["pipeline=sync"],
    ["pipeline=pipedream_2bw"],
    ["pipeline=pipedream_2bw", "correction=error_feedback"],
    ["pipeline=pipedream_2bw", "correction=weight_prediction"],
    ["pipeline=pipedream_2bw", "dtype=bfloat16"],
    ["pipeline=pipedream", "pipeline.num_stages=4"],
    [*DELAY_OF_3],
    ["pipeline=pipedream_2bw", "correction=learning_rate"],
    [*DELAY_OF_3, "correction=error_feedback", "correction.lag=delay"],
    [*DELAY_OF_3, "correction=taylor", "correction.decay=0.9"],
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
def test_the_size_of_a_checkpoint_is_foreseen(layout: list[str], tmp_path: Path) -> None:
    """Against one that is written: AdamW's, whose state is counted exactly."""
    small.corpus(tmp_path)
    words = [
        f"data.path={tmp_path / 'corpus'}",
        "batch_size=1",
        "seq_len=8",
        "num_updates=5",
        "checkpoint_every=4",
        f"out={tmp_path / 't'}",
    ]
    config = compose([*words, *layout])
    with pytest.raises(Stop):
        run_trial(config, stop_at(4))
    [path] = (tmp_path / "t").glob("checkpoint-*")
    assert plan_trial(config).checkpoint_bytes == pytest.approx(path.stat().st_size, rel=0.15)


def test_what_is_kept_of_a_trial_is_foreseen(tmp_path: Path) -> None:
    config = small.config(tmp_path, "num_updates=200", "save_final=true")
    run_trial(config)
    files = {
        f.stat().st_ino: f.stat().st_size for f in tmp_path.glob("results/**/*") if f.is_file()
    }
    assert plan_trial(config).kept_bytes == pytest.approx(sum(files.values()), rel=0.3)
    assert plan_trial({**config, "num_updates": 1, "save_final": False}).kept_bytes < RECORD + 200
