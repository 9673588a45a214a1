"""Where the limits of what a record may hold lie, to the last step."""

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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


NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(json.dumps),
    st.sampled_from(["1e999", "-1e400", "9" * 400, "-0", "0.10", "1E5", "1.7976931348623159e308"]),
)
VALUES = NUMBERS | st.sampled_from(["null", "true", '"a"', "[1]", "{}", "01", "1.", "+1", ""])


@given(st.dictionaries(st.sampled_from("abcd"), VALUES))
def test_rows_of_numbers_are_what_json_reads(row: dict[str, str]) -> None:
    """JSON as Python reads it, but for numbers that fit in no table."""
    text = "{" + ", ".join(f'"{key}": {value}' for key, value in row.items()) + "}"
    try:
        known = json.loads(text)
    except ValueError:
        known = None
    for word in row.values():
        number = float(word) if re.fullmatch(r"-?\d.*", word) and known is not None else 0.0
        is_integer = re.fullmatch(r"-?\d+", word) and abs(int(word)) > LARGEST
        if word in ("NaN", "Infinity", "-Infinity") or math.isinf(number) or is_integer:
            known = None
    if known is None:
        with pytest.raises(ValueError, match="not whole JSON"):
            parse(text.encode(), ANYTHING)
    else:
        assert repr(parse(text.encode(), ANYTHING)) == repr(known)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_fits_in_a_table(sign: int) -> None:
    assert parse(json.dumps({"a": sign * LARGEST}).encode(), ANYTHING) == {"a": sign * LARGEST}
    with pytest.raises(ValueError, match="too large"):
        parse(json.dumps({"a": sign * (LARGEST + 1)}).encode(), ANYTHING)


def test_a_config_is_as_deep_as_it_may_be(tmp_path: Any) -> None:
    parse(config_of(DEEPEST, tmp_path), CONFIG)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse(config_of(DEEPEST + 1, tmp_path), CONFIG)
