"""The command that runs the trials which would decide an advice."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from analysis.advice.evidence import Evidence, Gap
from analysis.advice.verdict import BY_UPDATES, Verdict
from analysis.table.records import Record

MAIN, COEFFICIENT = "main", "coefficient"
TRIED_BY_MAIN = (0, 1)
"""Coefficients of Error Feedback in the sweep `main`."""
OF_ONE_SWEEP = (
    *("sweep", "scale", "seeds", "grid", "tune", "search", "advice"),
    *("dry_run", "tracking"),
)
"""Words of a command line, or what they begin with, that say nothing of its trials' setting."""


def command(
    optimizer: str,
    found: Evidence | None,
    gap: Gap | None,
    verdict: Verdict,
    records: Sequence[Record],
) -> str:
    """A sweep at the scale, and with the words, of the one that ran the trials of `found`.

    Without evidence the first of the `records` counts. Empty if there is nothing to settle, or if
    no record has these trials: then nobody knows how to make more of them.
    """
    made = _made_by(found, records)
    if made is None or not verdict.settle:
        return ""
    sweep = MAIN if gap is None or gap.coefficient in TRIED_BY_MAIN else COEFFICIENT
    words: dict[str, object] = {"sweep": sweep, "scale": made.scale}
    words |= {"grid.optimizer": f"[{optimizer}]", **_of_setting(made)}
    if found is not None:
        words |= {key: "null" if value is None else value for key, value in found.keys.items()}
        words |= _length(made, sweep, found, verdict.settle)
    words |= {**verdict.settle, "advice": "null"}
    return f"python -m sweeps {shlex.join(map(_word, words.items()))}"


def _made_by(found: Evidence | None, records: Sequence[Record]) -> Record | None:
    if found is None:
        return next(iter(records), None)
    return next((record for record in records if {*found.trials} & {*record.trials}), None)


def _of_setting(made: Record) -> Mapping[str, str]:
    """The words of its command line that every trial got."""
    split = (word.partition("=") for word in made.words)
    return {key: value for key, _, value in split if key.split(".")[0] not in OF_ONE_SWEEP}


def _length(
    made: Record, sweep: str, found: Evidence, settle: Mapping[str, object]
) -> Mapping[str, object]:
    """How long its trials are, if another sweep than their own is to make more of them."""
    if made.sweep == sweep or {"num_updates", "grid.num_updates"} & {*settle}:
        return {}
    return {"num_updates": found.updates, **BY_UPDATES}


def _word(item: tuple[str, object]) -> str:
    key, value = item
    return f"{key}={value}".replace(" ", "")
