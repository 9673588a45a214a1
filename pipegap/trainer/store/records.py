"""The records that `pipegap sweep` leaves in a store: what each sweep was asked to run."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, StrictBool, TypeAdapter

from pipegap.trainer.folder.wellformed import Amount, Count, Damaged, damage, in_a_line, read


def _is_name(name: str) -> str:
    """Refuse what cannot be the name of a folder, as reports have one for each label."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError("must be the name of a folder")
    return name


Name = Annotated[str, AfterValidator(_is_name)]


@dataclass(frozen=True)
class RecordedTrial:
    """One trial of a sweep, done or not. Its cost is None where it is not known."""

    arm: str
    seed: Count
    tokens: Count | None
    flops: Amount | None
    seconds: Amount | None


@dataclass(frozen=True)
class Record:
    """A sweep at a scale, as the last command asked for it."""

    sweep: str
    scale: Name
    label: Name
    words: tuple[str, ...]
    verdict: str
    arms: tuple[str, ...]
    seeds: tuple[Count, ...]
    settled: StrictBool
    """Whether nothing is left to tune or to judge, so that the sweep asks for no further trial."""
    remarks: tuple[str, ...]
    compared: frozenset[str]
    """Ids of the trials that its report compares."""
    trials: dict[str, RecordedTrial]
    """All its trials by their ids, also those that tuning tried."""
    added: tuple[str, ...] = ()
    """The words that no command line had: the sweep's scale added them."""
    request: str = ""
    """A hash of what the sweep asked, see `sweeps.plan.sweep_plan`; before 0.3 there was none."""
    question: str = ""

    @property
    def given(self) -> list[str]:
        """The words of its command line, without the store, which may have moved since."""
        words_given = (word for word in self.words if word not in self.added)
        return [word for word in words_given if not word.startswith("results=")]

    @property
    def asked(self) -> frozenset[str]:
        """Those of the words that ask for trials."""
        return asked_by(self.given)

    @property
    def conditions(self) -> str:
        """The scale, and the word of the command line by which its trials are compiled, if any:
        sweeps of other conditions make other numbers."""
        ways = [word for word in self.words if word.startswith("compile=")]
        # The last word of a key counts, and false is what a command without the word has.
        return " ".join([self.scale, *(word for word in ways[-1:] if word != "compile=false")])


HOW = {"scale", "results", "dry_run", "gpus", "gpus_per_trial", "hourly", "first_trial", "tracking"}
"""Keys of words that do not ask for trials of a sweep at its scale."""
RECORD = TypeAdapter(Record)
"""A file of `sweeps/`: see `sweeps.plan.sweep_record`."""
FORMAT = 2
"""The `format` of every record since version 0.2."""


def asked_by(words: Iterable[str]) -> frozenset[str]:
    """Return the words that ask for trials; those of HOW do not."""
    # Up to a dot: `tracking.mode=online` is a word of the tracker too.
    return frozenset(word for word in words if re.split(r"[.=]", word)[0] not in HOW)


def records(results: Path) -> list[Record]:
    """Return the records of a store by their labels. Warns of files that are damaged."""
    contents, damaged = _read(results)
    if damaged:
        warnings.warn(in_a_line(damaged, "run their sweeps again"), stacklevel=2)
    return [RECORD.validate_python(contents[label]) for label in sorted(contents)]


def of_sweep(results: Path, sweep: str, scale: str) -> list[Record]:
    """Return the records of a sweep at a scale, of one request each; damaged ones are left out."""
    contents, _ = _read(results, f"{sweep}-{scale}*.json")
    records = map(RECORD.validate_python, contents.values())
    # The pattern of the names fits other sweeps and scales too.
    return [record for record in records if (record.sweep, record.scale) == (sweep, scale)]


def _read(
    results: Path, files: str = "*.json"
) -> tuple[dict[str, Mapping[str, Any]], list[Damaged]]:
    """Return the contents of records by their labels, and what is wrong with the others."""
    contents: dict[str, Mapping[str, Any]] = {}
    damaged = []
    for path in sorted((results / "sweeps").glob(files)):
        try:
            content = read(path, RECORD)
            if content.get("format") != FORMAT:
                raise Damaged(path, "is of version 0.1, when scales had other names")
            contents[content["label"]] = content
        except (Damaged, OSError) as error:
            damaged.append(damage(path, error))
    return contents, damaged
