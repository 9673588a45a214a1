"""Tables in Markdown: their rows are groups of trials, their cells are quantities of arms."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import pandas as pd
import yaml

from analysis.statistics.intervals import mean_interval
from analysis.statistics.text import tax_text
from analysis.table.names import minus
from analysis.table.names import optimizer as name
from analysis.table.text import markdown
from analysis.theory.stability import Stability, stability, three_digits
from findings.code.published import View, of_sweep
from trainer.base.cli import one_of
from trainer.base.errors import BadInput
from trainer.config.names import yamls

K = 0.1
"""The k at which noise is compared."""
STAGES = "pipeline.num_stages"
FEEDBACK = "trainer.corrections.error_feedback.ErrorFeedback"
Row = Mapping[Any, Any]


class Markdown(str):
    """Text that a page shows line by line; other text is wrapped."""


def gap(row: Row) -> str:
    """`+0.153 [+0.102, +0.204]`; of one pair `+0.153`."""
    ends: str = "" if pd.isna(row["low"]) else f" [{row['low']:+.3f}, {row['high']:+.3f}]"
    return minus(f"{row['gap']:+.3f}{ends}") if row["n"] else ""


def removed(row: Row) -> str:
    """The share of the gap that a correction removes: `52 % [30, 70]`."""
    share, low, high = (100 * row[key] for key in ("removed", "removed_low", "removed_high"))
    return "" if pd.isna(share) else minus(f"{share:.0f} % [{low:.0f}, {high:.0f}]")


def sign(differences: pd.Series) -> int:
    """1 or −1 if the interval of their mean lies above or below 0, else 0."""
    low, high = mean_interval(differences.dropna().to_numpy())
    return int(low > 0) - int(high < 0)


def mean(differences: pd.Series | None) -> str:
    """The mean of paired differences with its interval, as a gap is written."""
    if differences is None:
        return ""
    values = differences.dropna().to_numpy()
    low, high = mean_interval(values)
    return gap({"n": len(values), "gap": values.mean(), "low": low, "high": high})


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Markdown:
    """A table in Markdown."""
    return Markdown(re.sub(r"\|  (?=\|)", "| ", markdown(heads, rows)))


class TrialGroup(NamedTuple):
    """What was measured of one optimizer, at one value of each key."""

    arms: Mapping[str, Row]
    """Arm → its row in the table of gaps; arms without a pair are missing."""
    losses: pd.DataFrame
    """Final losses, one row per seed, one column per arm."""
    trial: Row
    """One of the trials."""

    def gap(self, arm: str) -> pd.Series:
        """The final losses of an arm minus those of sync, by seed."""
        return self.losses[arm] - self.losses["sync"]

    @property
    def optimizer(self) -> str:
        """The optimizer's name in conf/."""
        return str(self.trial["optimizer"])

    def is_linear(self) -> bool:
        """Whether the theory is about this optimizer."""
        try:
            self.theory()
        except BadInput:
            return False
        return True

    def theory(self, arm: str = "delay", over: bool = False) -> Stability:
        """A delay of 1, and Error Feedback with the coefficient of an arm (0 if it has none), after
        the updates of the run, or once a schedule of the optimizer's own is `over`."""
        given = self.arms[arm]["coefficient"]
        coefficient: float = 0.0 if pd.isna(given) else float(given)
        updates = math.inf if over else float(self.trial["num_updates"])
        own = settings(self.optimizer, self.trial)
        return expected(self.optimizer, tuple(own.items()), coefficient, updates)


def settings(name: str, trial: Row) -> dict[str, Any]:
    """Those of an optimizer of conf/: what the trial has in its columns, else what its YAML says.

    Raises KeyError for an optimizer that conf/ does not have.
    """
    files = {path.stem: path for path in yamls("optimizer")}
    node: dict[str, Any] = yaml.safe_load(files[name].read_text())
    given = {key: trial.get(f"optimizer.{key}") for key in node}
    return {**node, **{key: value for key, value in given.items() if pd.notna(value)}}


@cache
def expected(
    optimizer: str,
    own: tuple[tuple[str, Any], ...] = (),
    coefficient: float = 1.0,
    updates: float = math.inf,
) -> Stability:
    """A delay of 1 and Error Feedback, for an optimizer of its own settings, or of those of conf/,
    after so many updates."""
    fed = {"_target_": FEEDBACK, "coefficient": coefficient, "lag": 1}
    names, node = (name(optimizer), "Error Feedback"), dict(own) or settings(optimizer, {})
    return stability(names, node, fed, delay=1, k=K, updates=updates)


Groups = Mapping[tuple[Any, ...], TrialGroup]
"""(optimizer, value of each key …) → its group."""


def groups(view: View, *keys: str) -> Groups:
    """The groups of a view, sorted; of several points in one, the one of sync's lowest loss."""
    points = view.trials.drop_duplicates("point").set_index("point")
    rows = view.gaps[view.gaps["pairs"] > 0].rename(columns={"num_stages": STAGES})
    rows = rows.join(points[[key for key in keys if key not in rows]], on="point")
    made = {}
    for at, of_group in rows.groupby(["optimizer", *keys]):
        best = of_group.sort_values("loss_sync")["point"].iloc[0]
        trials = view.trials[view.trials["point"] == best]
        if STAGES in keys:  # which is no part of a point
            trials = trials[trials[STAGES] == at[1 + keys.index(STAGES)]]
        losses = trials.pivot_table(index="seed", columns="arm", values="final_val_loss")
        records = of_group[of_group["point"] == best].to_dict("records")
        arms = {row["arm"]: row for row in records}
        made[at] = TrialGroup(arms, losses, trials.iloc[0].to_dict())
    return made


def selected(sweep: str, scale: str, only: str = "") -> View:
    """The trials of a sweep; of `only`, KEY=VALUE, those at points where a key has this value."""
    shown = of_sweep(sweep, scale)
    if not only:
        return shown
    key, _, value = only.partition("=")
    return shown.at(shown.trials.loc[shown.trials[key].astype(str) == value, "point"])


class Quantity(NamedTuple):
    """What makes a cell: of arms, a value of a group, and the text of that value."""

    value: Callable[..., Any]
    text: Callable[[Any], str] = str


def _of_arm(text: Callable[[Row], str]) -> Quantity:
    """A text about an arm's row in the table of gaps."""
    return Quantity(lambda group, arm: group.arms.get(arm), lambda row: text(row) if row else "")


def _less(group: TrialGroup, arm: str, other: str = "sync") -> pd.Series | None:
    return group.losses[arm] - group.losses[other] if arm in group.losses else None


def _share(group: TrialGroup, arm: str) -> float | None:
    """What the theory says that an arm removes of the noise, if it says anything."""
    return group.theory(arm).noise_removed if group.is_linear() else None


def together(counts: Iterable[object]) -> str:
    """`8`, or `5 and 4` where counts differ."""
    return " and ".join(dict.fromkeys(map(str, counts)))


def _counts(group: TrialGroup, *arms: str) -> str:
    return together(group.arms[arm]["n"] for arm in arms if arm in group.arms)


QUANTITIES: Mapping[str, Quantity] = {
    "optimizer": Quantity(lambda group: name(group.optimizer)),
    "model": Quantity(lambda group: f"`{group.trial['model']}`"),
    "value": Quantity(lambda group, key: group.trial[key], "{:g}".format),
    "sync loss": Quantity(lambda group: f"{group.losses['sync'].mean():.3f}"),
    "loss": Quantity(lambda group, arm: group.losses[arm], lambda losses: f"{losses.mean():.3f}"),
    "gap": Quantity(_less, mean),
    "less": Quantity(_less, mean),
    "removed": _of_arm(removed),
    "tax": _of_arm(tax_text),
    "n": Quantity(_counts),
    "diverged": _of_arm(lambda row: f"{row['diverged']} of {row['pairs']}"),
    "limit": Quantity(lambda group: group.theory().sync_over_delayed, three_digits),
    "fed limit": Quantity(
        lambda group: group.theory("delay_ef").corrected_over_delayed, three_digits
    ),
    "noise": Quantity(lambda group: group.theory().noise_delayed, "{:.3f}".format),
    "share": Quantity(_share, lambda share: "" if share is None else minus(f"{100 * share:.0f} %")),
}
"""Name of a quantity → what makes it of a group and of the words that follow the name."""


def quantity(words: str) -> Quantity:
    """What `less delay_ef delay` and such words ask for. Raises BadInput for other words."""
    known = [name for name in QUANTITIES if f"{words} ".startswith(f"{name} ")]
    if not known:
        raise one_of("quantity", words, [*QUANTITIES])
    value, text = QUANTITIES[known[0]]
    arms = words.removeprefix(known[0]).split()
    return Quantity(lambda group: value(group, *arms), text)


def listed(words: str) -> list[tuple[str, str]]:
    """`HEAD: WORDS; …` as pairs of a head and its words; words alone are their own head."""
    parts = [" ".join(part.split()).rpartition(": ") for part in words.split(";") if part.strip()]
    return [(head or said, said) for head, _, said in parts]
