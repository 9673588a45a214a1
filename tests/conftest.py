"""One thread a test process: bitwise equality must not depend on how a sum was split."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # a slow machine fails no test
settings.load_profile("no deadline")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
