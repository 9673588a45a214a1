"""What a sweep costs beside its trials: `python -m bench.overhead [seeds=67]`.

Trials of one update, three arms: all of them by `python -m sweeps` on this machine's cores, and the
bare function one after the other in this process. The aim: at most 0.5 s more per trial.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from sweeps.plan.sweep_plan import plan_sweeps
from sweeps.request.command_line import parse_request
from sweeps.request.expand import unique
from trainer.trial import run_trial

WORDS = (
    "sweep=main",
    "scale=micro",
    "grid.optimizer=[adamw]",
    "model.hidden_size=24",
    "model.num_layers=1",
    "model.intermediate_size=32",
    "batch_size=4",
    "seq_len=16",
    "num_updates=1",
)


def main() -> None:
    """Prints a table."""
    given = dict(word.split("=") for word in sys.argv[1:])
    seeds = f"seeds={[*range(int(given.get('seeds', '67')))]}".replace(" ", "")
    with TemporaryDirectory(prefix="pipegap-overhead-") as scratch:
        words = [*WORDS, seeds, f"results={Path(scratch) / 'bare'}"]
        [sweep] = plan_sweeps(parse_request(words))
        trials = unique(sweep.planned)
        run_trial({**trials[0].config, "out": f"{scratch}/first"})  # imports, once
        started = time.perf_counter()
        for trial in trials:
            run_trial(trial.config)
        bare = (time.perf_counter() - started) / len(trials)
        words[-1] = f"results={Path(scratch) / 'swept'}"
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "sweeps", *words], check=True, capture_output=True)
        swept = (time.perf_counter() - started) / len(trials)
    print("| trials | bare function, s per trial | sweep, s per trial | more |")
    print("| --- | --- | --- | --- |")
    print(f"| {len(trials)} | {bare:.3f} | {swept:.3f} | {swept - bare:.3f} |")


if __name__ == "__main__":
    main()
