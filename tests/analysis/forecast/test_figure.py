"""The figure of a forecast beside what was measured since."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.figures.figure import whole
from analysis.figures.forecast import LAW, MEASURED, MEASURED_CAPTION, RUNG, TARGET, data, drawn
from analysis.forecast.answer import Answer, answer
from analysis.forecast.ladder import Rung
from tests.support.simulated_ladders import SIZE, Truth, ladder

LONGEST = Rung(12_800, 128, SIZE, gaps=np.array([0.01, 0.03]), losses=np.array([1.0, 1.0]))


@pytest.fixture(scope="module")
def foretold() -> Answer:
    return answer(ladder(Truth(), np.random.default_rng(0)), LONGEST.settings, 3)


def test_the_law_does_not_know_what_was_measured_since(foretold: Answer) -> None:
    before, after = data([foretold]), data([foretold], [LONGEST])
    [measured] = after[after["kind"] == MEASURED].to_dict("records")
    assert (measured["updates"], measured["n"]) == (12_800, 2)
    assert measured["mean"] == pytest.approx(0.02)
    assert measured["is_beyond"]
    for kind in (LAW, RUNG, TARGET):
        shown = [table[table["kind"] == kind].reset_index(drop=True) for table in (before, after)]
        assert len(shown[0])
        assert shown[0].equals(shown[1])


def test_an_open_circle_is_explained_where_there_is_one(foretold: Answer) -> None:
    with_it, without = drawn([foretold], [LONGEST]), drawn([foretold])
    assert MEASURED_CAPTION in whole(with_it)["description"]
    assert MEASURED_CAPTION not in whole(without)["description"]


def test_what_has_no_forecast_is_not_drawn(foretold: Answer) -> None:
    none = replace(foretold, point=None)
    assert data([none], [LONGEST]).empty


def test_all_layers_give_the_axis_one_title(foretold: Answer) -> None:
    """Vega-Lite strings titles that differ together."""
    far = replace(LONGEST, gaps=np.array([2.0, 3.0]))  # the axis is logarithmic, and says so
    [panel] = drawn([foretold], [far]).specs
    titles = [layer["encoding"]["y"]["title"] for layer in panel["layer"]]
    assert "logarithmic" in str(titles[0])
    assert all(title == titles[0] for title in titles)
