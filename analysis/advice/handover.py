"""From the verdict to the training: the lines that put 2BW in the place of 1F1B."""

from collections.abc import Sequence

from analysis.advice.advice import Advice
from analysis.advice.verdict import GO
from analysis.table import names

CODE = """
def update(): schedule.clip_grad_norm_(max_norm); optimizer.step(); scheduler.step()
schedule = pipegap.Schedule2BW(stage, {microbatches}, loss_fn, update=update, error_feedback={by:g})
with schedule.drained(): evaluate(); save()  # between batches, wherever you do so
"""


def handover(answers: Sequence[Advice]) -> str:
    """Return three lines of Python for the first advice that says go against a pipeline, under a
    line that says where they belong; the empty string if none says so.

    λ is that of the runs that decided, against the slowest of these pipelines.
    """
    return next((lines for answer in answers if (lines := _lines(answer))), "")


def _lines(advice: Advice) -> str:
    rivals = [each for each in advice.rivals.values() if each.decision.word == GO]
    won = {each.speed_up: each.same_time.arm for each in rivals if each.same_time}
    if not won or advice.evidence is None:
        return ""
    coefficients = {gap.arm: gap.coefficient for gap in advice.evidence.gaps}
    where = "on torch.distributed.pipelining, in place of Schedule1F1B (docs/pipeline.md)"
    code = CODE.format(microbatches=advice.microbatches, by=coefficients[won[max(won)]])
    lines = [f"to go with {names.optimizer(advice.optimizer)} {where}:", *code.split("\n")[1:-1]]
    return "\n  ".join(lines)
