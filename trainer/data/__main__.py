"""Prepares a corpus: `python -m trainer.data wiki [tokenizer=bpe] [out=DIR] [num_tokens=N]`; or, by
`python -m trainer.data evaluation`, the questions of benchmarks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.base.cli import (
    BAD_INPUT,
    DONE,
    Parser,
    end_with,
    number,
    one_of,
    parser,
    refuse_others,
    split_word,
)
from trainer.base.errors import BadInput
from trainer.base.paths import require_folder
from trainer.data import benchmarks
from trainer.data.corpora import CORPORA
from trainer.data.prepare import prepare
from trainer.data.shards import Prepared
from trainer.data.tokenizers import ENCODERS

CACHE = Path("data/archives")


def _parser() -> Parser:
    return parser(
        "python -m trainer.data",
        "Downloads a corpus, tokenizes it and writes verified shards.",
        f"corpus:      {' | '.join(CORPORA)}; or {benchmarks.NAME}: the questions of benchmarks\n"
        f"tokenizer=   {' | '.join(ENCODERS)} (default: the corpus's own)\n"
        "out=         folder (default: data/CORPUS, data/CORPUS_TOKENIZER if that is given)\n"
        "num_tokens=  stop after so many training tokens",
        words="corpus key=value",
    )


def _asked(words: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The corpus, which comes first, and the options."""
    name = words[0] if words else ""
    if not name or "=" in name:
        raise BadInput("corpus", name, f"must be named first: {', '.join(CORPORA)}")
    given = dict(map(split_word, words[1:]))
    for key, value in given.items():
        if key not in ("tokenizer", "out", "num_tokens"):
            raise BadInput(key, value, "must be tokenizer=, out= or num_tokens=")
    return name, given


def _num_tokens(value: str) -> float:
    if not number(value) > 0:
        raise BadInput("num_tokens", value, "must be a positive number")
    return number(value)


def _out(value: str) -> Path:
    require_folder("out", value)
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
    """Prepares corpus `name`, unless it is there and valid; returns one line that says so, or of
    the benchmarks one for each."""
    if name == benchmarks.NAME:
        refuse_others(options, f"python -m trainer.data {name}")
        return benchmarks.prepare(cache)
    corpus_name, _, suffix = name.rpartition("_")
    if name not in CORPORA and corpus_name in CORPORA:  # wiki_bpe, as the folder is called
        return run(corpus_name, {"tokenizer": suffix, **options}, cache)
    if name not in CORPORA:
        raise one_of("corpus", name, CORPORA)
    corpus = CORPORA[name]
    tokenizer = options.get("tokenizer", corpus.tokenizer)
    if tokenizer not in ENCODERS:
        raise one_of("tokenizer", tokenizer, ENCODERS)
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
            num_workers=len(os.sched_getaffinity(0)),
        )
    data = Prepared(path=str(out)).open()
    return (
        f"{out} {'was there already' if there else 'prepared'}: {len(data.train):,} tokens to "
        f"train on, {len(data.validation):,} to validate, vocabulary {data.vocab_size:,}"
    )


def main() -> int:
    """Exit code: 0 done, 2 bad input."""
    try:
        print(run(*_asked(_parser().parse_args(sys.argv[1:]).keys)))
    except BadInput as error:
        print(f"python -m trainer.data: {error}", file=sys.stderr)
        return BAD_INPUT
    return DONE


if __name__ == "__main__":
    end_with(main)
