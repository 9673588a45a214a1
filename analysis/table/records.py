"""The records that `python -m sweeps` leaves in a store: what each sweep was asked to run."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, StrictBool, TypeAdapter

from analysis.table.text import in_a_line
from trainer.base.places import FORMER_SCALES
from trainer.folder.files import Damaged, damage
from trainer.folder.wellformed import Amount, Count, read


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
    """Whether nothing is left to tune or to judge, so that no further trial can be asked for."""
    remarks: tuple[str, ...]
    compared: frozenset[str]
    """Ids of the trials that its report compares."""
    trials: dict[str, RecordedTrial]
    """All its trials by their ids, also those that tuning tried."""
    added: tuple[str, ...] = ()
    """Those of the words that no command had: the sweep prefers them, and its record keeps them."""

    @property
    def conditions(self) -> str:
        """The scale, and the word of the command line by which its trials are compiled, if any:
        sweeps of other conditions make other numbers."""
        ways = [word for word in self.words if word.startswith("compile=")]
        return " ".join([self.scale, *(word for word in ways[-1:] if word != "compile=false")])


RECORD = TypeAdapter(Record)
"""A file of `sweeps/`: see `sweeps.plan.sweep_record`."""
FORMAT = 2
"""The `format` of the records that are written today; those before version 0.2 have none."""


def records(results: Path) -> list[Record]:
    """Return the records of a store by their labels. Warns of files that are damaged."""
    contents, damaged = _read(results)
    if damaged:
        warnings.warn(in_a_line(damaged, "run their sweeps again"), stacklevel=2)
    return [RECORD.validate_python(contents[label]) for label in sorted(contents)]


def damaged_records(results: Path) -> list[Damaged]:
    """Return the records of a store that are damaged."""
    return _read(results)[1]


def _read(results: Path) -> tuple[dict[str, Mapping[str, Any]], list[Damaged]]:
    """Return the contents of records by their labels, and what is wrong with the others."""
    contents: dict[str, Mapping[str, Any]] = {}
    damaged = []
    for path in sorted((results / "sweeps").glob("*.json")):
        try:
            content = with_present_scale(read(path, RECORD))
            if content["label"] not in contents or content["format"] == FORMAT:
                contents[content["label"]] = content
        except (Damaged, OSError) as error:
            damaged.append(damage(path, error))
    return contents, damaged


def with_present_scale(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the content of a record with the present name of its scale in scale, label and words.

    A record from before version 0.2 has no `format`, and the names that scales had then.
    """
    former = content["scale"]
    if "format" in content or former not in FORMER_SCALES:
        return {"format": 1, **content}
    scale = FORMER_SCALES[former]
    return {
        **content,
        "format": 1,
        "scale": scale,
        "label": f"{content['label'].removesuffix(former)}{scale}",
        "words": [*(w for w in content["words"] if w != f"scale={former}"), f"scale={scale}"],
    }
