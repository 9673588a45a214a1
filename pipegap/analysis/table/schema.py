"""Every column of the three tables: its dtype and what it says. Losses in nats per token."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

Columns = Mapping[str, tuple[str, str]]


def table_of(rows: Sequence[Mapping[str, Any]], columns: Columns) -> pd.DataFrame:
    """Return the rows as a table of these columns, with their dtypes; a missing key is a missing
    value."""
    table = pd.DataFrame(rows, columns=[*columns])
    return table.astype({name: dtype for name, (dtype, _) in columns.items()})


TRIAL: Columns = {
    "trial_id": ("string", "hash of what made it; of an unfinished trial the name of its folder"),
    "status": ("string", "completed, diverged, failed or unfinished"),
    "model": ("string", "name of the model, as chosen"),
    "data": ("string", "name of the data, as chosen"),
    "optimizer": ("string", "name of the optimizer, as chosen"),
    "pipeline": ("string", "name of the pipeline, as chosen"),
    "correction": ("string", "name of the correction, as chosen"),
    "lr_schedule": ("string", "name of the learning-rate schedule, as chosen"),
    "arm": ("string", "label of how staleness is made and corrected (see rows.py)"),
    "base_arm": ("string", "label of the arm without its correction"),
    "family": ("string", "label of the arm without its correction's coefficient"),
    "arm_without_cooldown": ("string", "label of the arm without its synchronous cooldown"),
    "schedule": ("string", "what the pipeline is, by whatever name it was chosen"),
    "method": ("string", "what the correction is, by whatever name it was chosen"),
    "delay": ("Int64", "largest counted delay of all stages, in updates; missing until counted"),
    "coefficient": ("float64", "λ of the correction; NaN if it has none"),
    "lag": ("string", "lag of Error Feedback: 1 or delay; missing of other corrections"),
    "start": ("float64", "synchronous start: updates, or a share below 1; 0 without one"),
    "cooldown": ("float64", "synchronous cooldown: updates, or a share below 1; 0 without one"),
    "point": ("string", "key of everything that the arms of a comparison share (see points.py)"),
    "settings_key": ("string", "key of the same but for the data"),
    "seed": ("Int64", "seed of the trial"),
    "final_val_loss": ("float64", "validation loss of the last weights; NaN unless completed"),
    "diverged_at": ("Int64", "update at which it diverged"),
    "num_updates": ("Int64", "updates done; of a trial that is not finished, those asked for"),
    "num_updates_asked": ("Int64", "of the config; missing if tokens_per_parameter says it"),
    "num_parameters": ("Int64", "tied weights counted once"),
    "num_active_parameters": ("Int64", "without experts that a token does not visit, if known"),
    "tokens": ("Int64", "tokens trained on"),
    "epochs": ("float64", "passes over the training split"),
    "wall_seconds": ("float64", "of all attempts, evaluation included"),
    "tokens_per_second": ("float64", "of training alone"),
    "peak_memory_bytes": ("Int64", "largest memory in use"),
    "delays": ("object", "largest counted delay of each stage, in updates"),
    "layers_by_stage": ("object", "how the model was cut: layers of each stage"),
    "bubble": ("float64", "of a true pipeline: share of the time that ranks ran nothing, mean"),
    "data_hash": ("string", "hash of the data manifest"),
    "trainer_version": ("Int64", "raised when a fix of the trainer changes numbers"),
    "git": ("string", "commit of the trainer"),
    "device_name": ("string", "what it ran on"),
    "processor": (
        "string",
        "kind of the machine's processor: those of one kind give the same bits",
    ),
    "error": ("string", "traceback of a failed trial"),
    "finished_at": ("datetime64[ns, UTC]", "when the trial finished"),
    "folder": ("string", "the trial's folder"),
}
"""`analysis.load`: one row per trial. Beside these come `versions.<package>` and every key of the
config by its dotted name (`optimizer.lr`), typed by its values; it is missing where a choice does
not have it, and there is no such column if none has, but for `data.path`."""

OF_ARM = (
    *("base_arm", "family", "arm_without_cooldown", "schedule", "method"),
    *("coefficient", "lag", "start", "cooldown"),
)
"""Columns that are the same for all trials of an arm."""

GAP: Columns = {
    "optimizer": ("string", "name of the optimizer, as chosen"),
    "setting": ("string", "the keys that differ among the points of this optimizer"),
    "point": ("string", "as in the table of trials"),
    "arm": ("string", "as in the table of trials; never sync"),
    **{name: (TRIAL[name][0], "as in the table of trials") for name in OF_ARM},
    "delay": ("Int64", "as in the table of trials; missing if the point has no trial of the arm"),
    "num_stages": ("Int64", "p of the arm; missing if the point has no trial of the arm"),
    "num_microbatches": ("Int64", "m of the arm; missing if the point has no trial of the arm"),
    "n": ("Int64", "pairs that are averaged: both trials completed"),
    "gap": ("float64", "mean over these pairs of the arm's final loss minus that of sync"),
    "low": ("float64", "lower end of the 95 % interval of the mean gap; NaN if n < 2"),
    "high": ("float64", "upper end"),
    "loss_sync": ("float64", "mean final loss of sync over the same pairs"),
    "loss": ("float64", "mean final loss of the arm over the same pairs"),
    "diverged": ("Int64", "pairs in which the arm diverged and sync did not; not in n"),
    "pairs": ("Int64", "n + diverged"),
    "sync_diverged": ("Int64", "seeds that are left out because sync diverged"),
    "removed": ("float64", "1 − mean gap / mean gap without the correction, same seeds"),
    "removed_low": ("float64", "lower end of its 95 % interval (Fieller)"),
    "removed_high": ("float64", "upper end"),
    "removed_n": ("Int64", "seeds that both arms have, if none of them diverged"),
    "tax": ("float64", "token tax: updates to sync's loss over sync's own, mean ratio over seeds"),
    "tax_low": ("float64", "lower end of its 95 % interval (see tax.py); NaN if tax_n < 2"),
    "tax_high": ("float64", "upper end"),
    "tax_n": ("Int64", "seeds behind the tax; 0 without one"),
    "tax_from": (
        "string",
        "lengths: delayed runs of several lengths; slope: sync's runs of several lengths",
    ),
    "tax_why": ("string", "why there is no tax, or between which limits it lies"),
    "regime": ("string", "why the point is outside of the paper's regime; empty if it is within"),
    "missing_seeds": ("string", "seeds of the point that this arm has no result for"),
    "missing_sync_seeds": ("string", "seeds of the arm that sync has no result for"),
}
"""`analysis.gaps`: one row per optimizer, point, arm, number of stages and of microbatches."""

BEST: Columns = {
    "optimizer": ("string", "name of the optimizer, as chosen"),
    "task": ("string", "what the settings share and other tasks of this optimizer do not"),
    "arm": ("string", "as in the table of trials; never sync"),
    "num_stages": ("Int64", "p of the arm"),
    "num_microbatches": ("Int64", "m of the arm"),
    "n": ("Int64", "seeds that are averaged: each at the settings that are best on the others"),
    "gap": ("float64", "mean over these of the arm's loss at its setting minus sync's at its own"),
    "low": ("float64", "lower end of its interval (see statistics/gaps.py); NaN if n < 2"),
    "high": ("float64", "upper end"),
    "gap_same_seeds": ("float64", "the same at the settings below, chosen on the seeds compared"),
    "setting_sync": ("string", "sync's best setting over all seeds"),
    "setting": ("string", "the arm's best setting over all seeds"),
    "loss_sync": ("float64", "mean final loss of sync at its best setting"),
    "loss": ("float64", "mean final loss of the arm at its best setting"),
    "pairs": ("Int64", "seeds of the grid; beyond n, the arm diverged at the setting held out"),
    "num_points": ("Int64", "settings that both choose from"),
    "arm_diverged": ("Int64", "of these, at which the arm diverged at some seed"),
    "sync_diverged": ("Int64", "settings that are left out because sync diverged there"),
    "incomplete": ("Int64", "settings that are left out because a seed is missing in an arm"),
    "point_sync": ("string", "key of sync's best setting"),
    "point": ("string", "key of the arm's best setting"),
}
"""`analysis.best`: one row per optimizer, task, arm, number of stages and of microbatches."""

DOWNSTREAM: Columns = {
    "optimizer": ("string", "name of the optimizer, as chosen"),
    "setting": ("string", "the keys that differ among the points of this optimizer"),
    "point": ("string", "as in the table of trials"),
    "arm": ("string", "as in the table of trials; never sync"),
    "num_stages": ("Int64", "p of the arm"),
    "num_microbatches": ("Int64", "m of the arm"),
    "task": ("string", "name of the task, as lm-eval has it"),
    "measure": ("string", "accuracy, accuracy_norm, bits_per_byte, margin or share"),
    "n": ("Int64", "pairs that are averaged: both trials answered the same questions"),
    "questions": ("Int64", "questions of the task"),
    "sync": ("float64", "mean of sync over these seeds and questions"),
    "value": ("float64", "mean of the arm"),
    "difference": ("float64", "the arm's mean minus sync's"),
    "low": ("float64", "lower end of its 95 % interval over seeds and questions"),
    "high": ("float64", "upper end"),
    "of": ("string", "arms, or two checkpoints: the interval of one seed is of its models alone"),
    "p": ("float64", "of one seed's accuracy: McNemar's exact p-value"),
    "detectable": ("float64", "difference that such an interval shows with a probability of 80 %"),
}
"""`analysis.downstream`: one row per optimizer, point, arm, task and measure."""
