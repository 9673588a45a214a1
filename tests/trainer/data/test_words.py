"""A wrong word of `pipegap data` is refused in one line, and nothing is downloaded."""

import pytest

from pipegap.trainer.data import __main__ as module
from tests.support.refusals import Refused, name_of

LONG = "x" * 300

# words → what the one line has
BAD = {
    "": "corpus=: must be named first: ",
    "out=a": "corpus=out=a: must be named first",
    "wika": "corpus=wika: must be one of wiki, ",
    LONG: f"corpus={LONG[:100]}…{LONG[:100]}: must be one of ",
    "wiki_bpo": "tokenizer=bpo: must be one of ",
    "wiki tokenizer=bpo": "tokenizer=bpo: must be one of bpe, ",
    "wiki tokenizer=": "tokenizer=: must be one of ",
    "wiki more": "more=: must be key=value",
    "wiki seed=1": "seed=1: must be tokenizer=, out= or num_tokens=",
    "wiki out=": "out=: must be a path, not empty",
    "wiki out=/": "out=/: must name a folder",
    "wiki out=.": "out=.: must name a folder",
    f"wiki out={LONG}": "must be a path of at most",
    "wiki out=a\0": r"out=a\x00: must be text without control",
    "wiki num_tokens=0": "num_tokens=0: must be a positive number",
    "wiki num_tokens=-1": "num_tokens=-1: must be a positive number",
    "wiki num_tokens=nan": "num_tokens=nan: must be a positive number",
    "wiki num_tokens=٣": "num_tokens=٣: must be a positive number",
    "wiki num_tokens=many": "num_tokens=many: must be a positive number",
    "wiki --force": "--force=: is not an option of this command",
}


@pytest.mark.parametrize("words", BAD, ids=name_of)
def test_a_wrong_word_is_refused_in_one_line(
    words: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "prepare", None)
    assert BAD[words] in refused(lambda: module.main(words.split()))
