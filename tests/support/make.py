"""What `make` would run."""

import os
import subprocess

from pipegap.trainer.base.places import CODE_ROOT


def lines_of_make(*words: str) -> list[str]:
    """Lines of `make -n WORDS`, untouched by the words of the `make test` that runs this."""
    env = {key: value for key, value in os.environ.items() if key not in ("ARGS", "MAKEFLAGS")}
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", *words],
        cwd=CODE_ROOT,
        env=env,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
