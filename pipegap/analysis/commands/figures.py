"""Draws the figures of a results folder for a paper: one or two columns wide, light or dark.

e.g. pipegap figures only=final_losses width=one
"""

import warnings
from pathlib import Path

from pipegap.trainer.base.cli import Given, take_choice
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import require_folder
from pipegap.trainer.store.opened import pulled

KEYS = {
    "results": "the store (default: results)",
    "out": "where to write SVG, PNG, PDF and CSV of each (default: figures)",
    "width": "one (3.25 inches), two (6.75 inches: the default): columns of a paper",
    "theme": "light (the default), dark",
    "only": "names of figures, e.g. final_losses,fig07_learning_rate (default: all)",
}


def main(values: Given) -> None:
    """Prints the files that it wrote, without their endings; raises BadInput."""
    # Not at the top, in any command: its help and its refusals wait neither for altair nor pandas.
    from pipegap.analysis.figures import FIGURES
    from pipegap.analysis.figures.figure import WIDTHS, export
    from pipegap.analysis.report.contents import StoreViews, figures_of, scopes
    from pipegap.analysis.table.load import load
    from pipegap.trainer.store.records import records

    out = values.get("out", "figures")
    require_folder("out", out)
    store = pulled(values.get("results", "results"))
    # Of both kinds of choices the first is the default, but for the width of two columns.
    width = take_choice({"width": "two", **values}, "width", [*WIDTHS])
    is_dark = take_choice(values, "theme", ("light", "dark")) == "dark"
    names = [figure.name for figure in FIGURES]
    only = [name for name in values.get("only", "").split(",") if name] or names
    for name in only:
        if name not in names:
            raise BadInput("only", name, f"must be among {', '.join(names)}")
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the report says them
        for scope in scopes(StoreViews(load(store), records(store))):
            folder = Path(out) / scope.folder
            folder.mkdir(parents=True, exist_ok=True)
            for drawn in figures_of(scope, only):
                export(drawn, folder, width, is_dark=is_dark)
                print(folder / drawn.figure.name)
