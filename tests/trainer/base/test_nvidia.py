"""What NVIDIA's program says is read as it stands in its pages; without it nothing is told."""

from pathlib import Path

import pytest

from pipegap.trainer.base import nvidia
from pipegap.trainer.base.nvidia import Clocks

HEAD = "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
LINKED = f"""\
{HEAD}
GPU0\t X \tNV18\tSYS\tSYS\tPIX\t0-51\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tSYS\tNODE\t0-51\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV18\tSYS\t52-103\t1\t\tN/A
GPU3\tSYS\tSYS\tNV18\t X \tSYS\t52-103\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
ALONE = "\t\x1b[4mGPU0\tCPU Affinity\x1b[0m\nGPU0\t X \t0-15\n"


def says(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str, exit_code: int = 0) -> None:
    """A program of that name says this."""
    program, said = folder / nvidia.PROGRAM, folder / "said"
    said.write_text(text)
    program.write_text(
        f'#!/bin/sh\necho "$@" > {folder}/asked\n/bin/cat {said}\nexit {exit_code}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize(
    ("table", "pairs"), [(LINKED, {"NV18": 2, "SYS": 4}), (ALONE, {}), ("No devices\n", {})]
)
def test_pairs_of_gpus_are_counted_by_their_links(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: str, pairs: dict[str, int]
) -> None:
    says(monkeypatch, tmp_path, table)
    assert nvidia.links() == pairs


@pytest.mark.parametrize(
    ("line", "clocks"),
    [
        ("1980, 1980, 700.00, 700.00, 0x0000000000000000", Clocks(1980, 1980, 700, 700, [])),
        ("345, 1980, 700.00, 700.00, 0x0000000000000001", Clocks(345, 1980, 700, 700, [])),
        (
            "1095, 1980, 500.00, 700.00, 0x0000000000000024",
            Clocks(1095, 1980, 500, 700, ["the power limit", "heat"]),
        ),
        ("[N/A], [N/A], [N/A], [N/A], [N/A]", None),
        ('Field "clocks.current.sm" is not a valid field to query.', None),
        ("", None),
    ],
)
def test_clocks_and_what_lowers_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, clocks: Clocks | None
) -> None:
    says(monkeypatch, tmp_path, f"{line}\n")
    assert nvidia.clocks("GPU-1") == clocks
    assert (tmp_path / "asked").read_text().startswith("--id=GPU-1 --query-gpu=clocks.current.sm,")


@pytest.mark.parametrize("is_there", [True, False])
def test_without_an_answer_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool
) -> None:
    if is_there:
        says(monkeypatch, tmp_path, LINKED, exit_code=9)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (nvidia.driver(), nvidia.links(), nvidia.clocks("GPU-1")) == ((None, []), {}, None)
