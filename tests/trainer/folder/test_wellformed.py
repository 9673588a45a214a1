"""Where the limits of what a record may hold lie, to the last step."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.support import small
from trainer.folder.wellformed import CONFIG, DEEPEST, LARGEST, parse

ANYTHING: TypeAdapter[Any] = TypeAdapter(dict)


def nested(depth: int) -> Any:
    """Lists within each other, in so many."""
    return [] if depth == 1 else [nested(depth - 1)]


def config_of(depth: int, tmp_path: Any) -> bytes:
    """A config whose mappings and lists are nested `depth` deep: the model is in it, a list in
    the model."""
    config = small.config(tmp_path)
    return json.dumps({**config, "model": {**config["model"], "own": nested(depth - 2)}}).encode()


def test_half_a_character_is_no_text() -> None:
    assert parse(rb'{"a": "\ud83d\ude00"}', ANYTHING) == {"a": "😀"}
    with pytest.raises(ValueError, match="not whole JSON"):
        parse(rb'{"a": "\ud83d"}', ANYTHING)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_fits_in_a_table(sign: int) -> None:
    assert parse(json.dumps({"a": sign * LARGEST}).encode(), ANYTHING) == {"a": sign * LARGEST}
    with pytest.raises(ValueError, match="too large"):
        parse(json.dumps({"a": sign * (LARGEST + 1)}).encode(), ANYTHING)


def test_a_config_is_as_deep_as_it_may_be(tmp_path: Any) -> None:
    parse(config_of(DEEPEST, tmp_path), CONFIG)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse(config_of(DEEPEST + 1, tmp_path), CONFIG)
