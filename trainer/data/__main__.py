"""Prepares a corpus: `python -m trainer.data wiki [tokenizer=bpe] [out=DIR] [num_tokens=N]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.data.corpora import CORPORA
from trainer.data.prepare import prepare
from trainer.data.shards import Prepared
from trainer.data.tokenizers import ENCODERS
from trainer.errors import BadInput

DONE, BAD_INPUT = 0, 2
CACHE = Path("data/archives")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.data",
        description="Downloads a corpus, tokenizes it and writes verified shards.",
        epilog="tokenizer=   "
        + " | ".join(ENCODERS)
        + " (default: the corpus's own)\nout=         folder (default: data/CORPUS, "
        "data/CORPUS_TOKENIZER if that is given)\nnum_tokens=  stop after so many training tokens",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("corpus", help=" | ".join(CORPORA))
    parser.add_argument("options", nargs="*", metavar="key=value")
    return parser


def _options(arguments: Sequence[str]) -> dict[str, str]:
    given = dict(argument.partition("=")[::2] for argument in arguments)
    for key, value in given.items():
        if key not in ("tokenizer", "out", "num_tokens"):
            raise BadInput(key, value, "must be tokenizer=, out= or num_tokens=")
    return given


def _num_tokens(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise BadInput("num_tokens", value, "must be a positive number")
    return number


def _out(value: str) -> Path:
    if not Path(value).name:  # nothing, "." or "/"
        raise BadInput("out", value, "must name a folder")
    return Path(value)


def _refuse_other_data(out: Path, asked: Mapping[str, object]) -> None:
    held = Prepared(path=str(out)).manifest.model_dump(include=set(asked))
    for key, value in asked.items():
        if held[key] != value:
            allowed = f"holds {key}={held[key]}, not {value}; delete it or choose another out="
            raise BadInput("out", out, allowed)


def run(name: str, options: dict[str, str], cache: Path = CACHE) -> str:
    """Prepares corpus `name` unless it is there already, verified; returns a line about it."""
    corpus_name, _, suffix = name.rpartition("_")
    if name not in CORPORA and corpus_name in CORPORA:  # wiki_bpe, as the folder is called
        return run(corpus_name, {"tokenizer": suffix, **options}, cache)
    if name not in CORPORA:
        raise BadInput("corpus", name, f"must be one of {', '.join(CORPORA)}")
    corpus = CORPORA[name]
    tokenizer = options.get("tokenizer", corpus.tokenizer)
    if tokenizer not in ENCODERS:
        raise BadInput("tokenizer", tokenizer, f"must be one of {', '.join(ENCODERS)}")
    default = name if tokenizer == corpus.tokenizer else f"{name}_{tokenizer}"
    out = _out(options.get("out", f"data/{default}"))
    num_tokens = _num_tokens(options.get("num_tokens", "inf"))
    there = Prepared(path=str(out)).hash is not None
    if there:
        asked = {"corpus": name, "tokenizer": tokenizer, "num_tokens": num_tokens}
        _refuse_other_data(out, asked)
    else:
        prepare(
            lambda: corpus.documents(cache),
            lambda texts, folder: ENCODERS[tokenizer](texts, folder, cache),
            out,
            validation_share=corpus.validation_share,
            num_tokens=num_tokens,
            about={
                "corpus": name,
                "tokenizer": tokenizer,
                "license": corpus.license,
                "attribution": corpus.attribution,
            },
        )
    data = Prepared(path=str(out)).open()
    return (
        f"{out} {'was there already' if there else 'prepared'}: {len(data.train):,} tokens to "
        f"train on, {len(data.validation):,} to validate, vocabulary {data.vocab_size:,}"
    )


def main() -> int:
    """Exit code: 0 done, 2 bad input."""
    arguments = _parser().parse_args()
    try:
        print(run(arguments.corpus, _options(arguments.options)))
    except BadInput as error:
        print(f"python -m trainer.data: {error}", file=sys.stderr)
        return BAD_INPUT
    return DONE


if __name__ == "__main__":
    sys.exit(main())
