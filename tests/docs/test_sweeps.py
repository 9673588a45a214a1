"""docs/sweeps.md: its table has every sweep of the paper, and says of each what it asks there."""

import re

from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.files import known
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


def test_the_sweeps_of_the_paper_are_those_whose_files_say_so() -> None:
    of_paper = parse_request(["sweep=paper", "scale=micro"])
    of_all = parse_request(["sweep=all", "scale=micro"]).sweeps
    said = {label: sweep for label, sweep in of_all.items() if sweep.paper}
    assert of_paper.sweeps == said
    assert of_paper.label == "paper-micro"
    assert 0 < len(said) < len(of_all) == len(known("sweep"))
