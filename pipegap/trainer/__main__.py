"""Runs one trial: `pipegap trial [key=value …]`."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from pipegap.trainer.base import cli
from pipegap.trainer.base.build import is_own
from pipegap.trainer.base.cli import DONE, FAILED, INTERRUPTED, Parser, split_word
from pipegap.trainer.base.errors import BadInput, GangFailed, LeaseLost, Stopped
from pipegap.trainer.base.places import CONF


def _parser() -> Parser:
    from pipegap.trainer.config.identity import GROUPS, yamls

    names = {group: " | ".join(path.stem for path in yamls(group)) for group in sorted(GROUPS)}
    choices = "\n".join(f"  {group + '=':<14}{stems}" for group, stems in names.items())
    # What stands above "# Training" is Hydra's list of groups, which `choices` shows already.
    keys = (CONF / "config.yaml").read_text("utf-8").partition("# Training")[2]
    options = cli.parser(
        "pipegap trial",
        "Runs or resumes one trial, and records it in its folder.\n\n"
        "e.g. pipegap trial optimizer=muon pipeline=pipedream_2bw correction=error_feedback",
        f"choices:\n{choices}\n\nkeys and their defaults:{keys}\n"
        "The keys of a choice are in conf/<group>/<choice>.yaml: optimizer.lr=0.004\n"
        "code=DIR and GROUP._target_=MODULE.NAME run Python: that of people whom you trust",
    )
    options.add_argument(
        "--cfg", action="store_true", help="print the resolved config, run nothing"
    )
    options.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="run this resolved config (a trial's config.json) without Hydra; "
        "only out=DIR may be given beside it, and code=DIR, without which no Python but pipegap's "
        "own is imported",
    )
    return options


def _config(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.config is None:
        # Imported here: Hydra is slow to load, and a resolved config does not need it.
        from pipegap.trainer.config.compose import compose

        return compose(arguments.keys)
    from pipegap.trainer.config.schema import validate

    config, values = _read(arguments.config), dict(map(split_word, arguments.keys))
    for key, value in values.items():
        if key not in ("out", "code"):
            raise BadInput(key, value, "with --config only out=DIR and code=DIR may be given")
    if "code" not in values:
        _require_no_code(config)
    return validate({**config, **values})


def _require_no_code(config: Mapping[str, Any]) -> None:
    """Raises BadInput if a config names Python that is not a choice of pipegap.

    The config may be a stranger's, so none of the Python that it names has been imported yet.
    """
    from pipegap.trainer.config.identity import is_offered, refuse_own_loop

    refuse_own_loop(config)
    says = "is Python that this config would run: give code=DIR too if you trust it (docs/trust.md)"
    if config.get("code") is not None:
        raise BadInput("code", config["code"], says)
    targets = {key: str(address) for key, address in _targets(config)}
    # All addresses are checked by their text before the first of pipegap's own is looked up.
    for key, address in targets.items():
        if not is_own(address):
            raise BadInput(key, address, says)
    for key, address in targets.items():
        if not is_offered(key.removesuffix("._target_"), address):
            # pipegap's own modules have other callables too, which no config needs.
            raise BadInput(key, address, f"must be that of a choice of pipegap's: this {says}")


def _targets(node: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields each `_target_` below a node, however deep, with its dotted key."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in pairs:
        if key == "_target_":
            yield f"{prefix}{key}", value
        elif isinstance(value, dict | list):
            yield from _targets(value, f"{prefix}{key}.")


def _read(path: Path) -> dict[str, Any]:
    """The content of a JSON file; raises BadInput."""
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput("--config", path, f"must be a JSON file ({error})") from None
    if not isinstance(config, dict):
        raise BadInput("--config", path, "must be a JSON file of keys and values")
    return config


def _show(row: dict[str, Any]) -> None:
    if "val_loss" in row:
        _say(
            f"update {row['update']}: train_loss {row['train_loss']:.4f} "
            f"val_loss {row['val_loss']} {row['tokens_per_second']:.0f} tokens/s",
            sys.stderr,
        )


def _say(message: str, file: TextIO) -> None:
    """Prints `message` to `file`; under torchrun only rank 0 prints."""
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):  # the terminal may be gone, and the trial goes on without it
            print(message, file=file)


def _summary(config: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    from pipegap.trainer.folder.wellformed import trial_folder

    return (
        f"{result['status']} trial {result['trial_id']}: final_val_loss "
        f"{result['final_val_loss']}, delays {result['delays']}, "
        f"{result['wall_seconds']:.0f} s, in {trial_folder(config, result['trial_id'])}"
    )


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done (a diverged trial is done), 2 bad input, 143 asked to stop, 130 interrupted
    before it could save or by a second Ctrl-C, 1 else."""
    try:
        arguments = _parser().parse_args(words)
        config = _config(arguments)
        if arguments.cfg:
            print(json.dumps(config, indent=1))
            return DONE
        from pipegap.trainer.trial import finished_result, run_trial

        # Asked before the run: `run_trial` returns an earlier result as it does a new one.
        earlier_result = finished_result(config)
        with cli.stopping("stops at the next drain, with a checkpoint") as asked_to_stop:
            result = run_trial(config, _show, asked_to_stop)
    except (BadInput, GangFailed, LeaseLost, Stopped) as error:
        _say(f"pipegap trial: {error}", sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        _say("pipegap trial: interrupted: the same command goes on", sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if (remedy := cli.remedy_of(error)) is None:
            raise  # a fault of the program: its traceback helps more than one line
        _say(f"pipegap trial: {error}: {remedy}", sys.stderr)
        return FAILED
    prefix = "" if earlier_result is None else "done before, not run: "
    _say(f"{prefix}{_summary(config, result)}", sys.stdout)
    return DONE


if __name__ == "__main__":
    cli.end_with(lambda: main(sys.argv[1:]))
