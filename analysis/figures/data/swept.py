"""Which points differ in given keys alone: what a panel against these keys holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.figures.paired_seeds import with_variant
from analysis.pairs import results
from analysis.points import in_words, varied


def along(trials: pd.DataFrame, keys: Sequence[str], part_of: str = "") -> pd.DataFrame:
    """Points with a result that differ in `keys` (columns of `trials`) alone, and in keys that
    follow from these: the index, with `optimizer`, `panel` (its title) and the keys.

    A key that follows is named in the title, as a tuned learning rate is, unless it begins with
    `part_of`. Empty if some key has the same value everywhere in a panel.
    """
    done = results(trials).drop_duplicates("point").set_index("point")
    none = done[:0].reindex(columns=["optimizer", "panel", *keys])
    if not {*keys} <= {*done}:
        return none
    panels = [
        group[[*keys]].assign(optimizer=optimizer, panel=title)
        for optimizer, points in varied(trials).items()
        for title, group in split(optimizer, _with(points, done, keys), keys, part_of)
        if all(group[key].nunique(dropna=False) > 1 for key in keys)
    ]
    return pd.concat(panels) if panels else none


def results_along(trials: pd.DataFrame, keys: Sequence[str], part_of: str = "") -> pd.DataFrame:
    """The trials with a result at these points, by panel and `keys`, with `panel` and `series`."""
    points = along(trials, keys, part_of)[["panel", *keys]]
    points = points.sort_values(["panel", *keys], kind="stable")
    done = results(trials).drop(columns=[*keys], errors="ignore")
    found = points.merge(done, left_index=True, right_on="point").reset_index(drop=True)
    return found.assign(series=with_variant(found, found["arm"]))


def split(
    optimizer: str, points: pd.DataFrame, keys: Sequence[str], part_of: str = ""
) -> Iterator[tuple[str, pd.DataFrame]]:
    """`points` by the keys that neither are among `keys` nor follow from them, with a title."""
    others = [other for other in distinct(points, keys) if other not in keys]
    follow = [other for other in others if _determine(points, keys, other)]
    fixed = [other for other in others if other not in follow]
    named = [other for other in follow if not (part_of and other.startswith(part_of))]
    for _, group in points.groupby(fixed, dropna=False) if fixed else [((), points)]:
        along = [f"with {other} moving along" for other in named]
        title = [optimizer, in_words(group[fixed].iloc[0]), *along]
        yield "\n".join(line for line in title if line), group


def distinct(points: pd.DataFrame, first: Sequence[str] = ()) -> list[str]:
    """The keys that differ, without those that say the same of every point as one before."""
    kept: dict[str, list[int]] = {}
    for key in [*first, *(key for key in map(str, points) if key not in first)]:
        codes = points[key].factorize(use_na_sentinel=False)[0].tolist()
        if codes not in kept.values() and len(set(codes)) > 1:
            kept[key] = codes
    return [*kept]


def _with(points: pd.DataFrame, done: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    found = points[points.index.isin(done.index)]
    return found.assign(**{key: done.loc[found.index, key] for key in keys})


def _determine(points: pd.DataFrame, keys: Sequence[str], other: str) -> bool:
    return bool((points.groupby([*keys], dropna=False)[other].nunique(dropna=False) == 1).all())
