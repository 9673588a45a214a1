"""What is compared beside the final loss: spikes, how late updates are, downstream scores."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from pipegap.analysis.statistics.pairs import (
    CONFIDENCE,
    SAME_ARM,
    Values,
    detectable_shift,
    mean_with_ends,
    pairs,
)
from pipegap.analysis.table.load import load
from pipegap.analysis.table.metrics import (
    ACCURACY,
    MEASURES,
    Scores,
    answered,
    config_of,
    metrics,
    task_of,
    training_losses,
    was_asked,
)
from pipegap.analysis.table.points import settings, updates_asked
from pipegap.analysis.table.schema import DOWNSTREAM, table_of
from pipegap.trainer.base.errors import FINAL, Status

# The spike of the training loss where a synchronous start ends and the delay is switched on
# (figures 3 and 20), and how near late updates are to the fresh ones (figures 17 and 18).

WINDOW = 10
"""Updates of a mean: the loss of one batch is too noisy to show a spike. The window of the height
begins at the switch and is fixed: the largest window of a run would be a spike of any noise."""
ARM = ["optimizer", "point", "arm"]
OF_ARM = ["n", "mean_height", "low", "high", "recovered"]
COLUMNS = [*ARM, "setting", "seed", "trial_id", "status", "switch", "height", "recovery", *OF_ARM]
DISTANCES = {"cosine": "update_cosine", "error": "update_error"}
"""Column of `lateness` → the diagnostic of the whole model that it is a mean of."""


def spikes(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per trial with a synchronous start, from `load`'s table.

    `switch`: the first update with a delay. `height`, in nats per token: the mean of train_loss
    over the WINDOW updates from the switch on, minus that of the sync trial of the same point and
    seed over the same updates: both saw the same batches, whose noise cancels. Missing without
    such a trial, or if there are fewer updates. `recovery`: updates from the switch to the end of
    the first window whose mean is no more than that of the trial itself before the switch; 0
    without a spike, missing if there is no such window. Beside these come numbers of the arm at its
    point: `n` heights, their mean with its 95 % interval, and how many of the n `recovered`.
    Raises and warns as `pairs.pairs` does.
    """
    started = trials[trials["start"] > 0]
    started = started[started["status"].isin(FINAL)]
    if len(started):
        folders = trials.set_index("trial_id")["folder"]
        partner = pairs(trials).set_index("trial_id")["trial_id_sync"]
        of_sync = started["trial_id"].map(partner).map(folders)
        started = started.assign(asked=updates_asked(started), folder_sync=of_sync)
    words = settings(trials)
    rows = [
        {**trial, "setting": words[trial["point"]], **_spike(trial)}
        for trial in started.to_dict("records")
    ]
    table = pd.DataFrame(rows, columns=[name for name in COLUMNS if name not in OF_ARM])
    of_arms = []
    for key, group in table.groupby(ARM):
        heights = group["height"].dropna().to_numpy(dtype=float)
        num_recovered = int(group["recovery"].notna().sum())
        of_arms.append((*key, len(heights), *mean_with_ends(heights), num_recovered))
    return table.merge(pd.DataFrame(of_arms, columns=[*ARM, *OF_ARM]), on=ARM)[COLUMNS]


def _spike(trial: Mapping[Any, Any]) -> dict[str, float]:
    # An int counts updates, a float is a share; 0 of a folder that was deleted meanwhile.
    start = config_of(trial["folder"]).get("pipeline", {}).get("synchronous_start", 0)
    switch = start if isinstance(start, int) else round(start * trial["asked"])
    losses = _losses(trial["folder"])
    sync = losses[:0] if pd.isna(trial["folder_sync"]) else _losses(trial["folder_sync"])
    # `reindex` puts NaN where an update has no row, so that both series have the same updates.
    around = range(switch - WINDOW, int(losses.index.max()) + 1) if len(losses) else range(0)
    height, recovery = measure(losses.reindex(around).to_numpy(), sync.reindex(around).to_numpy())
    return {"switch": switch, "height": height, "recovery": recovery}


def _losses(folder: str) -> pd.Series:
    return training_losses(folder).set_index("update")["train_loss"]


def measure(losses: NDArray[np.float64], sync: NDArray[np.float64]) -> tuple[float, float]:
    """Height and recovery, from the losses of the same updates of a trial and its sync partner: the
    WINDOW updates before the switch and all from it on. NaN is a missing loss."""
    if len(losses) < 2 * WINDOW:
        return np.nan, np.nan
    height = float((losses - sync)[WINDOW : 2 * WINDOW].mean())
    if not height > 0:  # NaN too
        return height, np.nan if np.isnan(height) else 0.0
    # [windows, WINDOW] from the switch on; the first window is that of the height.
    means = np.lib.stride_tricks.sliding_window_view(losses[WINDOW:], WINDOW).mean(axis=1)
    back = np.flatnonzero(means <= losses[:WINDOW].mean())
    return height, float(back[0] + WINDOW) if len(back) else np.nan


def lateness(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per completed trial that measured late updates, from `load`'s table.

    `cosine`: of the optimizer's update and the fresh one, which the same optimizer state would have
    made from the gradient at the newest weights; the mean over the `measured` late updates.
    `error`: likewise the length of their difference over that of the fresh one. Updates that are
    not late equal the fresh ones to the last bit, and are left out. Warns of damaged metrics.
    """
    words = settings(trials)
    done = trials[trials["status"] == Status.COMPLETED]
    rows = [
        {**trial, "setting": words[trial["point"]], **_of_late_updates(trial["folder"])}
        for trial in done[done["delay"].fillna(0) > 0].to_dict("records")
    ]
    columns = [*ARM, "setting", "seed", "trial_id", "measured", *DISTANCES]
    table = pd.DataFrame(rows, columns=columns)
    return table[table["measured"] > 0].reset_index(drop=True)


def _of_late_updates(folder: str) -> dict[str, float]:
    of_model = [row["diagnostics"].get("all", {}) for row in metrics(folder, "diagnostics")]
    rows = [[measured.get(name) for name in DISTANCES.values()] for measured in of_model]
    table = pd.DataFrame(rows, columns=[*DISTANCES], dtype=float)
    late = table[table["error"] > 0]  # of an update that is not late the error is exactly 0
    return {"measured": len(late), **late.mean()}


def compared(late: pd.DataFrame) -> pd.DataFrame:
    """One row per arm, setting and pair of optimizers, from `lateness`: the mean `difference`, the
    optimizer's cosine minus the other's, paired by seed, with its 95 % interval."""
    rows = []
    for (arm, setting), group in late.groupby(["arm", "setting"]):
        cosines = group.pivot_table(index="seed", columns="optimizer", values="cosine")
        for pair in combinations(cosines, 2):
            differences = (cosines[pair[0]] - cosines[pair[1]]).dropna().to_numpy()
            rows.append((arm, setting, *pair, *mean_with_ends(differences), len(differences)))
    columns = ["arm", "setting", "optimizer", "other", "difference", "low", "high", "n"]
    return pd.DataFrame(rows, columns=columns)


# Downstream scores of each arm beside those of sync, on the same questions and seeds.
#
# Seeds and questions are both samples. A score d[seed, question] = mean + seed's effect +
# question's effect + rest: two-way crossed random effects, without repetitions. With the mean
# squares of an analysis of variance, the mean over S seeds and Q questions has the variance
# (MS_seed + MS_question − MS_rest) / (S Q) (Searle, Casella and McCulloch 1992, chapter 4); its
# degrees of freedom are Satterthwaite's (1946). To take all S Q answers as independent is far too
# narrow: the seeds are asked the same questions, and answers of one model go together.

MOST_SEEDS = 1024
"""The most seeds that are tried."""


class Noise(NamedTuple):
    """What makes the mean over `num_questions` questions uncertain, besides the seeds' own spread.

    `questions`: the variance of that mean by which questions were drawn, shared by all seeds;
    `rest`: that of one seed's mean by the interplay of seed and question.
    """

    questions: float
    rest: float
    num_questions: int


def noise(scores: Values) -> Noise:
    """The noise of scores [seeds, questions]; one seed's is put down to the questions alone."""
    num_seeds, num_questions = scores.shape
    if num_questions < 2:
        return Noise(math.nan, math.nan, num_questions)
    by_question = scores.mean(axis=0)
    if num_seeds == 1:
        return Noise(float(by_question.var(ddof=1)) / num_questions, 0.0, num_questions)
    # What neither the seed nor the question explains: mean squares of the two-way analysis.
    residuals = scores - scores.mean(axis=1, keepdims=True) - by_question + scores.mean()
    of_rest = float((residuals**2).sum()) / (num_seeds - 1) / (num_questions - 1)
    # An estimate of a variance by a difference may be negative.
    of_questions = max(float(by_question.var(ddof=1)) - of_rest / num_seeds, 0.0)
    return Noise(of_questions / num_questions, of_rest / num_questions, num_questions)


def intervals(by_seed: Values, noise: Noise) -> tuple[Values, Values]:
    """Lower and upper ends for the mean of each seed, [..., seeds].

    Of one seed the interval is over questions alone: it is of that trained model, not of the arm.
    NaN where nothing varies, which tells nothing of what might.
    """
    variance, freedom = _variance(by_seed, noise)
    with np.errstate(invalid="ignore"):
        half = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance)
    half = np.where(variance > 0, half, np.nan)
    mean = by_seed.mean(axis=-1)
    return mean - half, mean + half


def safe_intervals(by_seed: Values, noise: Noise, confidence: float) -> tuple[Values, Values]:
    """Wider `intervals`, for two seeds or more: each part of the variance has its own quantile.

    At confidences far above 95 % Satterthwaite's degrees of freedom are too many if the spread of
    few seeds is small by chance.
    """
    num_seeds, tail = by_seed.shape[-1], (1 + confidence) / 2
    of_seeds = np.maximum(by_seed.var(axis=-1, ddof=1), noise.rest) / num_seeds
    quantiles = stats.t.ppf(tail, [num_seeds - 1, noise.num_questions - 1])
    half = np.sqrt(quantiles[0] ** 2 * of_seeds + quantiles[1] ** 2 * noise.questions)
    mean = by_seed.mean(axis=-1)
    return mean - half, mean + half


def crossed_interval(scores: Values) -> tuple[float, float]:
    """The interval of the mean of scores [seeds, questions]."""
    low, high = intervals(scores.mean(axis=1), noise(scores))
    return float(low), float(high)


def _variance(by_seed: Values, noise: Noise) -> tuple[Values, Values]:
    """The variance of the mean, and its degrees of freedom; shapes [...]."""
    num_seeds = by_seed.shape[-1]
    if num_seeds == 1:
        whole = np.full(by_seed.shape[:-1], noise.questions)
        return whole, np.full(by_seed.shape[:-1], noise.num_questions - 1.0)
    return _of_spread(by_seed.var(axis=-1, ddof=1), num_seeds, noise)


def _of_spread(spread: Values, num_seeds: int | Values, noise: Noise) -> tuple[Values, Values]:
    """Variance of the mean, and its degrees of freedom, if the seeds' means have the variance
    `spread`."""
    of_seeds, of_rest = spread / num_seeds, noise.rest / num_seeds
    of_questions = noise.questions + of_rest
    # At least what the questions alone would say: the spread of few seeds may be small by chance.
    variance = np.maximum(of_seeds + noise.questions, of_questions)
    seeds, questions = num_seeds - 1, noise.num_questions - 1
    parts = of_seeds**2 / seeds + of_questions**2 / questions + of_rest**2 / (seeds * questions)
    with np.errstate(invalid="ignore", divide="ignore"):
        return variance, variance**2 / parts


def detectable_difference(scores: Values) -> float:
    """The smallest true mean whose 95 % interval over as many seeds and questions excludes 0 with a
    probability of 80 %; infinite for fewer than two seeds, NaN where nothing varies."""
    if (n := len(scores)) < 2:
        return math.inf
    variance, freedom = _of_spread(scores.mean(axis=1).var(ddof=1), n, noise(scores))
    return detectable_shift(float(freedom)) * math.sqrt(variance) if variance > 0 else math.nan


def seeds_needed(scores: Values, half_width: float) -> int | None:
    """The fewest seeds whose 95 % interval is at most `half_width` to each side of the mean.

    None if MOST_SEEDS are not enough: then there are too few questions, or one seed alone.
    """
    if len(scores) < 2:
        return None
    spread = scores.mean(axis=1).var(ddof=1)
    n = np.arange(2.0, MOST_SEEDS + 1)
    variance, freedom = _of_spread(spread, n, noise(scores))  # for every number of seeds at once
    halves = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance)
    enough = n[halves <= half_width]
    return int(enough[0]) if len(enough) else None


ARMS = "arms"
CHECKPOINTS = "two checkpoints"
"""Of what a difference is: of arms, from several seeds; of one seed, of its two models alone."""
HALF_WIDTH = 0.005
"""Of the accuracy: as small as the differences of the paper's table 4."""


class TaskScores(NamedTuple):
    """Scores of an arm and its sync partners in one task by measure, [seeds, questions]: of the
    same seeds and questions, in the same order."""

    optimizer: str
    point: str
    arm: str
    num_stages: int
    num_microbatches: int
    task: str
    seeds: Sequence[int]
    of_sync: Scores
    of_arm: Scores

    def difference(self, measure: str) -> Values:
        """The arm's scores minus sync's."""
        return self.of_arm[measure] - self.of_sync[measure]


KEYS = TaskScores._fields[:6]


def task_scores(trials: pd.DataFrame) -> list[TaskScores]:
    """The scores of every arm and task of which a pair answered the same questions.

    `trials`: `load`'s table. Of a task that was asked in several ways, the way counts that most
    pairs answered.
    """
    if not any(map(was_asked, trials["folder"])):  # a store may have many thousands of trials
        return []
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the gaps say them
        paired = pairs(trials)
    completed_pairs = paired[(paired["status"] == Status.COMPLETED) & paired["gap"].notna()]
    folders = dict(zip(trials["trial_id"], trials["folder"], strict=True))
    answers_by_trial = {
        name: answered(folders[name])
        for name in {*completed_pairs["trial_id"], *completed_pairs["trial_id_sync"]}
    }
    scores = []
    for key, rows in completed_pairs.groupby(SAME_ARM, sort=False):
        # Python's own numbers, not numpy's, which the key of a group has.
        of_arm: list[Any] = [v.item() if isinstance(v, np.generic) else v for v in key]
        scores += [TaskScores(*of_arm, *of_task) for of_task in _tasks(rows, answers_by_trial)]
    return scores


def _tasks(
    rows: pd.DataFrame, answers_by_trial: dict[str, dict[str, Scores]]
) -> Iterator[tuple[Any, ...]]:
    """Task, seeds, and the scores of sync and of the arm, for each task."""
    by_stem: dict[str, list[tuple[int, Scores, Scores]]] = {}
    for row in rows.sort_values("seed").to_dict("records"):
        scores, sync = answers_by_trial[row["trial_id"]], answers_by_trial[row["trial_id_sync"]]
        for stem in scores.keys() & sync.keys():
            by_stem.setdefault(stem, []).append((int(row["seed"]), sync[stem], scores[stem]))
    # A task may have been asked in several ways: the one of the most pairs comes last, and stays.
    stems = {task_of(stem): stem for stem in sorted(by_stem, key=lambda stem: len(by_stem[stem]))}
    for task, stem in sorted(stems.items()):
        seeds, of_sync, of_arm = zip(*by_stem[stem], strict=True)
        yield task, seeds, _stacked(of_sync), _stacked(of_arm)


def _stacked(scores: Sequence[Scores]) -> Scores:
    return {name: np.stack([of_seed[name] for of_seed in scores]) for name in scores[0]}


def downstream(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per optimizer, point, arm, task and measure; columns: `schema.DOWNSTREAM`.

    Intervals are over seeds and questions (`crossed_interval`). Of one seed they are over questions
    alone, and say nothing of another run. Empty where no pair has answered a task.
    """
    words = settings(trials) if len(trials) else {}
    rows = [
        {**dict(zip(KEYS, scores, strict=False)), "setting": words[scores.point], **of_measure}
        for scores in task_scores(trials)
        for of_measure in _measures(scores)
    ]
    return table_of(rows, DOWNSTREAM)


def _measures(scores: TaskScores) -> Iterator[dict[str, Any]]:
    num_seeds, num_questions = scores.of_arm[ACCURACY].shape
    for measure in MEASURES:
        difference = scores.difference(measure)
        low, high = crossed_interval(difference)
        yield {
            "measure": measure,
            "n": num_seeds,
            "questions": num_questions,
            "sync": scores.of_sync[measure].mean(),
            "value": scores.of_arm[measure].mean(),
            "difference": difference.mean(),
            "low": low,
            "high": high,
            "of": ARMS if num_seeds > 1 else CHECKPOINTS,
            "p": _mcnemar(difference[0]) if measure == ACCURACY and num_seeds == 1 else np.nan,
            "detectable": detectable_difference(difference),
        }


def _mcnemar(difference: Values) -> float:
    """The exact p-value of two checkpoints' right and wrong answers (McNemar 1947)."""
    gains, losses = int((difference > 0).sum()), int((difference < 0).sum())
    return float(stats.binomtest(gains, gains + losses).pvalue) if gains + losses else 1.0


def precision(results: Path) -> str:
    """Lines on the differences in accuracy that the answers in a store can show: those detected
    with a probability of 80 %, and the seeds that HALF_WIDTH to each side needs."""
    tasks = task_scores(load(results)) if (results / "trials").is_dir() else []
    lines = [_precision(scores) for scores in tasks if scores.difference(ACCURACY)[1:].any()]
    none = "no task has two pairs of answers here yet: no difference can be told from chance"
    return "\n".join(lines or [f"power     {none}"])


def _precision(scores: TaskScores) -> str:
    difference = scores.difference(ACCURACY)
    needed = seeds_needed(difference, HALF_WIDTH)
    words = f"{needed} seeds for ±{HALF_WIDTH:g}" if needed else "too few questions"
    return (
        f"power     {scores.task}, {scores.optimizer} {scores.arm}: {len(scores.seeds)} seeds and "
        f"{difference.shape[1]:,} questions detect a difference in accuracy of "
        f"{detectable_difference(difference):.2g} (80 % power); {words}"
        + ("" if needed else f" for ±{HALF_WIDTH:g}, whatever the seeds")
    )
