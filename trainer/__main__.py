"""Runs one trial: `python -m trainer [key=value …]`."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from trainer.errors import BadInput, GangFailed, Stopped

CONF = Path(__file__).parent.parent / "conf"
DONE, FAILED = 0, 1


def _choices() -> str:
    """The groups of conf/ and what each can be."""
    of_sweeps = ("sweep", "tracking")
    groups = sorted(path for path in CONF.iterdir() if path.is_dir() and path.name not in of_sweeps)
    lines = [
        f"  {group.name + '=':<14}{' | '.join(sorted(file.stem for file in group.glob('*.yaml')))}"
        for group in groups
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    keys = (CONF / "config.yaml").read_text().partition("# Training")[2]
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description="Runs one trial, or goes on with it, and records it in its folder.",
        epilog=f"choices:\n{_choices()}\n\nkeys and their defaults:{keys}\n"
        "The keys of a choice are in conf/<group>/<choice>.yaml: optimizer.lr=0.004",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides")
    parser.add_argument("--cfg", action="store_true", help="print the resolved config, run nothing")
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="run this resolved config (a trial's config.json) without Hydra; "
        "only out=DIR may be given beside it",
    )
    return parser


def _config(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.config is None:
        from trainer.compose import compose

        return compose(arguments.overrides)
    from trainer.config import validate

    try:
        config = json.loads(arguments.config.read_text())
    except (OSError, ValueError) as error:
        raise BadInput("--config", arguments.config, f"must be a JSON file ({error})") from None
    for override in arguments.overrides:
        key, _, value = override.partition("=")
        if key != "out":
            raise BadInput(key, value, "with --config only out=DIR may be overridden")
        config["out"] = value
    return validate(config)


def _show(row: dict[str, Any]) -> None:
    if "val_loss" in row:
        print(
            f"update {row['update']}: train_loss {row['train_loss']:.4f} "
            f"val_loss {row['val_loss']} {row['tokens_per_second']:.0f} tokens/s",
            file=sys.stderr,
        )


def _say(message: str, file: TextIO) -> None:
    """Of the ranks that torchrun started, one speaks."""
    if os.environ.get("RANK", "0") == "0":
        print(message, file=file)


def main() -> int:
    """Exit code: 0 done (a diverged trial is done), 2 bad input, 143 asked to stop, 1 else."""
    arguments = _parser().parse_args()
    try:
        config = _config(arguments)
        if arguments.cfg:
            print(json.dumps(config, indent=1))
            return DONE
        from trainer.record import trial_folder
        from trainer.stopping import stopping
        from trainer.trial import run_trial

        with stopping("stops at the next drain, with a checkpoint") as asked_to_stop:
            result = run_trial(config, _show, asked_to_stop)
    except (BadInput, GangFailed, Stopped) as error:
        _say(f"python -m trainer: {error}", sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _say(f"python -m trainer: {error}: free some, the same command goes on", sys.stderr)
        return FAILED
    _say(
        f"{result['status']} trial {result['trial_id']}: final_val_loss "
        f"{result['final_val_loss']}, delays {result['delays']}, "
        f"{result['wall_seconds']:.0f} s, in {trial_folder(config, result['trial_id'])}",
        sys.stdout,
    )
    return DONE


if __name__ == "__main__":
    sys.exit(main())
