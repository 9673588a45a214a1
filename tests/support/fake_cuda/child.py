"""`python -m tests.support.fake_cuda.child CACHE`: one line of JSON in per question, one out.

A question has the keyword arguments of the function `ask` of a module beside this one.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

from tests.support.fake_cuda.library import load

if __name__ == "__main__":
    load(Path(sys.argv[1]))
    trials = import_module("tests.support.fake_cuda.trials")  # imports torch
    for line in sys.stdin:
        question = json.loads(line)
        facts = getattr(trials, f"{question.pop('about')}_facts")(**question)
        print(json.dumps(facts), flush=True)
