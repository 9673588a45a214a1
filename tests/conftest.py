"""One thread a test process: bitwise equality must not depend on how a sum was split."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
