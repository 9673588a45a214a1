"""What tests of the analysis share."""

from collections.abc import Iterator

import pytest

from tests.support.pages import FEW, with_figures


@pytest.fixture(scope="module")
def few_figures() -> Iterator[None]:
    """A report has a few figures alone, and pictures of them on its page only: enough for tests of
    its words and tables, in a third of the time. It holds for all tests of a file."""
    with with_figures(FEW):
        yield
