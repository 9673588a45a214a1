"""Lists trials of a store."""

from collections.abc import Sequence

from sweeps.store.selected import KEYS, select
from trainer.base.cli import DONE, parse, take_choice

FORMATS = ("text", "csv", "json")
OPTIONS = f"""\
{KEYS}
columns=    of the list, separated by commas: any of the table of trials
format=     {", ".join(FORMATS)}"""


def main(words: Sequence[str]) -> int:
    """Exit code 0, also if there is nothing to list; raises BadInput."""
    from analysis.table.selection import SHOWN

    given = parse(words, "python -m sweeps list", __doc__ or "", OPTIONS)
    form = take_choice(given, "format", FORMATS)
    columns = given.pop("columns", ",".join(SHOWN)).split(",")
    print(select(given).text(columns, form))
    return DONE
