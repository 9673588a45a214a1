"""Which points differ in given keys alone: what a panel against these keys holds."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from analysis.figures.rows import PANEL, lines, with_variant
from analysis.statistics.pairs import results
from analysis.table import names
from analysis.table.points import group_of, varied


class Group(NamedTuple):
    """The points of one panel: the index of `points`, with the keys that differ among them."""

    subtitle: str
    points: pd.DataFrame


def along(trials: pd.DataFrame, keys: Sequence[str], part_of: str = "") -> pd.DataFrame:
    """Return the points with a result that differ in `keys` alone, and in keys that follow.

    `keys` are columns of `trials`. The points are the index; the columns are `optimizer`, PANEL
    and the keys. The subtitle names each key that follows, as a tuned learning rate does, unless
    it is in the group `part_of` of the config. The table is empty if one of the keys has the same
    value everywhere in a panel.
    """
    done = results(trials).drop_duplicates("point").set_index("point")
    none = done[:0].reindex(columns=["optimizer", *PANEL, *keys])
    if not {*keys} <= {*done}:
        return none
    panels = [
        group.points[[*keys]].assign(
            optimizer=optimizer, panel=names.optimizer(optimizer), subtitle=group.subtitle
        )
        for optimizer, points in varied(trials).items()
        for group in groups(_with_keys(points, done, keys), keys, part_of)
        if all(group.points[key].nunique(dropna=False) > 1 for key in keys)
    ]
    return pd.concat(panels) if panels else none


def results_along(trials: pd.DataFrame, keys: Sequence[str], part_of: str = "") -> pd.DataFrame:
    """Return the trials with a result at the points of `along`, with PANEL and `series`.

    The rows are sorted by panel and `keys`.
    """
    points = along(trials, keys, part_of)[[*PANEL, *keys]]
    points = points.sort_values([*PANEL, *keys], kind="stable")
    done = results(trials).drop(columns=[*keys], errors="ignore")
    rows = points.merge(done, left_index=True, right_on="point").reset_index(drop=True)
    return rows.assign(series=with_variant(rows, rows["arm"].map(names.arms(trials))))


def groups(points: pd.DataFrame, keys: Sequence[str], part_of: str = "") -> Iterator[Group]:
    """Yield `points` by the keys that neither are among `keys` nor follow from them."""
    others = [other for other in distinct(points, keys) if other not in keys]
    follow = [other for other in others if _determine(points, keys, other)]
    fixed = [other for other in others if other not in follow]
    named = [other for other in follow if not part_of or group_of(other) != part_of]
    for _, group in points.groupby(fixed, dropna=False) if fixed else [((), points)]:
        followers = [f"with {names.key(other)} moving along" for other in named]
        yield Group(lines([names.in_words(group[fixed].iloc[0]), *followers]), group)


def distinct(points: pd.DataFrame, first: Sequence[str] = ()) -> list[str]:
    """Return the keys that differ, and of keys that distinguish the same points the first one."""
    kept: dict[str, list[int]] = {}
    for key in [*first, *(key for key in map(str, points) if key not in first)]:
        # Two keys tell the same points apart if they number them alike, whatever their values.
        codes = points[key].factorize(use_na_sentinel=False)[0].tolist()
        if codes not in kept.values() and len(set(codes)) > 1:
            kept[key] = codes
    return [*kept]


def _with_keys(points: pd.DataFrame, done: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    there = points[points.index.isin(done.index)]
    return there.assign(**{key: done.loc[there.index, key] for key in keys})


def _determine(points: pd.DataFrame, keys: Sequence[str], other: str) -> bool:
    return bool((points.groupby([*keys], dropna=False)[other].nunique(dropna=False) == 1).all())
