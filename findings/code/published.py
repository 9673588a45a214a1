"""The published trials: `findings/STUDY/trials_SCALE.csv`, and what published.yaml says of them."""

from functools import cache, cached_property
from pathlib import Path

import pandas as pd

from analysis import gaps, load
from trainer.base import documents
from trainer.base.cli import one_of

FINDINGS = Path(__file__).parents[1]
ROOT = FINDINGS.parent
FEW, TINY = "few_updates", "tiny"
CONTENT = documents.read((FINDINGS / "published.yaml").read_text(encoding="utf-8"))


class View:
    """Trials that are compared; of a part of a view, gaps are those of the `whole`."""

    def __init__(self, trials: pd.DataFrame, whole: "View | None" = None) -> None:
        self.trials, self._whole = trials, whole

    @cached_property
    def gaps(self) -> pd.DataFrame:
        """The gaps of the trials."""
        if self._whole is None:
            return gaps(self.trials)
        return self._whole.gaps[self._whole.gaps["point"].isin(self.trials["point"])]

    def at(self, points: pd.Series) -> "View":
        """Return the part at these points."""
        return View(self.trials[self.trials["point"].isin(points)], self)


def sweeps(scale: str) -> list[str]:
    """Return the sweeps that have published trials at a scale, sorted."""
    own = {path.parent.name for path in FINDINGS.glob(f"*/trials_{scale}.csv")}
    named = (name.split() for name in CONTENT["views"] if name.endswith(f" {scale}"))
    return sorted(own | {sweep for sweep, _ in named})


def read(table: str) -> pd.DataFrame:
    """Return a table of trials by its path in findings/ without .csv; raises BadInput without."""
    return load(FINDINGS / f"{table}.csv")


@cache
def view(*names: str) -> View:
    """Return the trials of these names of published.yaml together, each trial once."""
    parts = []
    for name in names:
        content = CONTENT["views"].get(name) or {"tables": ["/trials_".join(name.split())]}
        trials = pd.concat([read(table) for table in content["tables"]])
        arms = content.get("arms")
        parts.append(trials[trials["arm"].isin(arms)] if arms else trials)
    trials = pd.concat(parts).drop_duplicates("trial_id").reset_index(drop=True)
    shown = View(trials)
    if names not in (("coefficient few_updates",), ("coefficient tiny",)):
        return shown
    corrected = shown.gaps["coefficient"].notna() & (shown.gaps["pairs"] > 0)
    return shown.at(shown.gaps.loc[corrected, "point"])  # elsewhere no coefficient was run


def of_sweep(sweep: str, scale: str) -> View:
    """Return the trials of one sweep. Raises BadInput if nothing of it is published."""
    if sweep not in sweeps(scale):
        raise one_of("sweep", sweep, sweeps(scale))
    return view(f"{sweep} {scale}")


def scores() -> pd.DataFrame:
    """Return `analysis.downstream` of the trials of three small models, which `model` names."""
    rows = pd.read_csv(FINDINGS / "downstream" / "scores.csv")
    return rows.sort_values(["model", "optimizer", "arm", "task"], kind="stable")


def spikes(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the published heights of spikes, with the points of their trials."""
    heights = pd.read_csv(FINDINGS / "spike" / "heights_tiny.csv")
    return heights.merge(trials[["trial_id", "point"]], on="trial_id")
