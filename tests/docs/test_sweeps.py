"""docs/sweeps.md: its table has every sweep of the paper, and says of each what it asks there."""

import re

from pipegap.sweeps.request.command_line import parse_request
from tests.support.markdown import ROOT, SPAN

ROW = re.compile(r"\| (`[\w`, ]+`) \| .+ \| (.+) \|")
BEYOND = "beyond"


def test_the_table_names_every_sweep_of_the_paper_and_where_the_paper_asks_the_same() -> None:
    asked = parse_request(["sweep=all", "scale=micro"]).sweeps
    papers = {label.removesuffix("-micro"): sweep.paper or BEYOND for label, sweep in asked.items()}
    lines = (ROOT / "docs" / "sweeps.md").read_text().splitlines()
    rows = [(SPAN.findall(row[1]), row[2]) for row in map(ROW.fullmatch, lines) if row]
    told = {name: paper for names, paper in rows for name in names if name in papers}
    assert told == {name: papers[name] for name in told}
    assert {name for name, paper in papers.items() if paper != BEYOND} <= {*told}
