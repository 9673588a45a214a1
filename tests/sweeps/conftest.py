"""What tests of whole sweeps share."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def without_figures() -> Iterator[None]:
    """The reports that this process makes have no figures, which other tests look at."""
    from tests.support.reports import with_figures  # slow: only imported where a report is made

    with with_figures([]):
        yield
