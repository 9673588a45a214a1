"""Puts one small mistake after another into a copy of the code, and looks whether a test fails.

    python -m bench.mutations out=FOLDER [mutants=300] [seed=0] [seconds=20] [again=true]

Draws `mutants` of all mutants of the rooms that could fake a gap (rooms.py) at random, tries each
with the quickest tests that execute its lines, up to `seconds` of them, and prints those that
survived, and the score. `out` keeps what was found, so that a second call goes on, and tries
survivors `again`. verdicts.yaml says of survivors why no test needs to notice them.

Neither mutmut nor cosmic-ray is used: the former mutates no decorated function, and half of this
code overrides, is a property or a context, or runs without gradients; the latter starts a process
for each mutant, and torch takes seconds to import. The tests of each line are found by coverage.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.mutations.mutants import Mutant, mutants
from bench.mutations.reach import Reach, in_order, reaches
from bench.mutations.rooms import LEFT_OUT, ROOMS, TESTS
from bench.mutations.sandbox import Sandbox, preload
from bench.mutations.score import (
    Status,
    Tried,
    is_uncounted,
    read_verdicts,
    survivors_table,
    table,
    verdict_of,
)

ROOT = Path(__file__).parent.parent.parent
VERDICTS = Path(__file__).parent / "verdicts.yaml"
SLACK, FACTOR = 30.0, 10.0
"""A test may take so many seconds, and so many times as long as before, until it counts as hung."""
AGAIN = 3.0
"""What did not end is tried once more, with so many times the limit."""


def draw(seed: int, number: int) -> tuple[list[Mutant], list[Mutant]]:
    """(all mutants of the rooms, so many of them in a random order).

    A mutant's place in the order depends on its name and the seed only, so that a change of the
    code leaves most of the draw as it was.
    """
    files = [path for room in ROOMS for path in sorted((ROOT / room).glob("*.py"))]
    every = [mutant for path in files for mutant in mutants(path, ROOT)]
    chance = {one.key: hashlib.sha256(f"{seed} {one.key}".encode()).digest() for one in every}
    return every, sorted(every, key=lambda one: chance[one.key])[:number]


def attempt(
    mutant: Mutant, sandbox: Sandbox, known: Mapping[str, Reach], seconds: float, log: Path
) -> dict[str, Any]:
    """Runs the tests of one mutant; returns what is kept of it."""
    tests = in_order(mutant, known, seconds)
    started = time.monotonic()
    failed = ""
    if tests:
        with sandbox.mutated(mutant.path, mutant.source):
            failed = first_failure(
                sandbox, tests, lambda test: SLACK + FACTOR * known[test].seconds, log
            )
    status = Status.KILLED if failed else Status.SURVIVED if tests else Status.NOT_REACHED
    took = round(time.monotonic() - started, 1)
    return {"key": mutant.key, "status": status, "by": failed, "tests": len(tests), "took": took}


def first_failure(
    sandbox: Sandbox, tests: Sequence[str], limit: Callable[[str], float], log: Path
) -> str:
    """The first test that failed, or that did not end twice: a busy machine may be slow once."""
    outcome = sandbox.run(tests, limit, log)
    if outcome.hung not in tests:
        return outcome.failed
    rest = tests[tests.index(outcome.hung) :]
    return sandbox.run(rest, lambda test: AGAIN * limit(test), log).failed


def main(words: Sequence[str]) -> None:
    """Tries what has not been tried, then prints survivors and scores."""
    given = {"mutants": "300", "seed": "0", "seconds": "20", "again": "false"}
    given |= dict(word.split("=", 1) for word in words)
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "outcomes.jsonl"
    every, drawn = draw(int(given["seed"]), int(given["mutants"]))
    share = 100 * len(drawn) / len(every)
    print(f"{len(drawn)} of {len(every)} mutants ({share:.0f} %), seed={given['seed']}", flush=True)
    seen = _read(kept)
    verdicts = read_verdicts(VERDICTS)
    is_again = given["again"] == "true"
    left = [
        mutant
        for mutant in drawn
        if mutant.key not in seen
        or (is_again and seen[mutant.key][-1] != Status.KILLED and not verdict_of(mutant, verdicts))
    ]
    if left:
        _try(left, float(given["seconds"]), out, kept)
    seen = _read(kept)
    tried = [Tried(one, seen[one.key][0], seen[one.key][-1]) for one in drawn if one.key in seen]
    for one in tried:
        is_open = one.last is not Status.KILLED and not verdict_of(one.mutant, verdicts)
        if is_open and not is_uncounted(one):
            print(f"\n{one.last}\n{one.mutant.diff((ROOT / one.mutant.path).read_bytes())}")
    print(f"\n{table(every, tried, verdicts)}\n\n{survivors_table(tried, verdicts)}")


def _try(left: Sequence[Mutant], seconds: float, out: Path, kept: Path) -> None:
    preload()
    with TemporaryDirectory(prefix="pipegap-mutants-") as scratch:
        sandbox = Sandbox(ROOT, Path(scratch) / "copy")
        files = sorted({str(p.relative_to(ROOT)) for glob in TESTS for p in ROOT.glob(glob)})
        known = reaches(sandbox, files, ROOMS, LEFT_OUT, out / "reach")
        for number, mutant in enumerate(left, 1):
            found = attempt(mutant, sandbox, known, seconds, out / "log")
            with kept.open("a") as file:
                file.write(json.dumps(found) + "\n")
            place = f"{mutant.path}, {mutant.function}: {mutant.kind}"
            print(
                f"{number}/{len(left)} {found['status']} {found['took']} s {place} {found['by']}",
                flush=True,
            )


def _read(kept: Path) -> dict[str, list[Status]]:
    """Key → what became of the mutant, time after time."""
    seen: dict[str, list[Status]] = {}
    for line in kept.read_text().splitlines() if kept.exists() else ():
        found = json.loads(line)
        seen.setdefault(found["key"], []).append(Status(found["status"]))
    return seen


if __name__ == "__main__":
    main(sys.argv[1:])
