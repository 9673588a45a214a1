"""A tokenizer.json as what it encodes: its vocabulary and rules, without what somebody left in it.

Published files keep settings of the program that saved them: a length at which texts are cut,
padding, merges that chance leaves out, tokens that a template puts around a text. Training and
evaluation read every file by `loaded`.
"""

from tokenizers import Tokenizer

from pipegap.trainer.base.errors import BadInput, some

END_OF_DOCUMENT = "<|endoftext|>"
ENDS = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>")
"""Tokens that end a document, in published tokenizers; the first that is there counts."""


def without_settings(content: str) -> str:
    """The file without truncation, padding and dropout of merges; as it is if it has none."""
    tokenizer = Tokenizer.from_str(content)
    return tokenizer.to_str(pretty=True) if _drop_settings(tokenizer) else content


def _drop_settings(tokenizer: Tokenizer) -> bool:
    """Whether there was one."""
    dropout = getattr(tokenizer.model, "dropout", None)
    had = bool(tokenizer.truncation or tokenizer.padding or dropout)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if dropout:
        tokenizer.model.dropout = None
    return had


def loaded(content: str) -> Tokenizer:
    """The tokenizer of a file. It adds no token to a text, and no text becomes a special token."""
    tokenizer = Tokenizer.from_str(content)
    _drop_settings(tokenizer)
    tokenizer.post_processor = None
    # <|endoftext|> inside a document is ordinary text and does not end the document.
    tokenizer.encode_special_tokens = True
    return tokenizer


def end_of_document(tokenizer: Tokenizer, name: object, named: str | None = None) -> str:
    """The special token `named`, or else the first of ENDS that is special.

    A token that is not special, such as the tag `</s>` in some vocabularies, is a text's own.
    Raises BadInput, for the tokenizer called `name`, if there is none.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    special = [token.content for token in added if token.special]
    if named is not None and named not in special:
        allowed = f"must be a special token of the tokenizer: {some(special) or 'it has none'}"
        raise BadInput("data.end_of_document", named, allowed)
    if (end := named or next((token for token in ENDS if token in special), None)) is None:
        allowed = f"must have a special token that ends a document: {', '.join(ENDS)}"
        other = f"or data.end_of_document names another (it has {some(special) or 'none'})"
        raise BadInput("data.tokenizer", name, f"{allowed}; {other}")
    return end


def usual_end(tokenizer: Tokenizer) -> str | None:
    """The first of ENDS in the vocabulary, special or not: by it no name of a tokenizer changes."""
    return next((token for token in ENDS if tokenizer.token_to_id(token) is not None), None)
