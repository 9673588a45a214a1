"""`python -m tests.support.fake_cuda.child CACHE`: one line of JSON in per question, one out.

A question says what it is `about`, as the functions of `trials` are called, and has the keyword
arguments of that function. `device.cpp` is built once per version of torch, in 10 s, and loaded
before torch is imported.
"""

import ctypes
import hashlib
import json
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
FLAGS = ["-shared", "-fPIC", "-O0", "-std=c++20"]


def compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("g++", "clang++"))), None)


def built(cache: Path) -> Path:
    """The library in `cache`, which is built there if it lacks."""
    made_from = SOURCE.read_bytes() + version("torch").encode()
    library = cache / f"device-{hashlib.sha256(made_from).hexdigest()[:16]}.so"
    if not library.exists():
        spec = find_spec("torch")
        assert spec is not None
        assert spec.origin is not None
        torch, program = Path(spec.origin).parent, compiler()
        assert program is not None
        places = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
        places += [f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib", "-lc10", "-ltorch_cpu"]
        unfinished = library.with_suffix(f".{id(places)}")
        subprocess.run([program, *FLAGS, SOURCE, "-o", unfinished, *places], check=True)
        unfinished.rename(library)
    return library


def load(cache: Path) -> None:
    assert "torch" not in sys.modules, "torch asks for CUDA's hooks when it is imported"
    ctypes.CDLL(str(built(cache)))


if __name__ == "__main__":
    load(Path(sys.argv[1]))
    trials = import_module("tests.support.fake_cuda.trials")  # imports torch
    for line in sys.stdin:
        question = json.loads(line)
        facts = getattr(trials, f"{question.pop('about')}_facts")(**question)
        print(json.dumps(facts), flush=True)
