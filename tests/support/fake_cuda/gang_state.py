"""What a rank with a fake GPU sends when the gang is saved."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from pipegap.trainer.executors.pipelined import Pipelined
from pipegap.trainer.ranks import groups
from tests.support.fake_cuda.gpu import FakeGPU


def looked_at() -> dict[str, Any]:
    """The devices of the tensors that are sent, and whether two that share memory still do."""
    sent: list[Any] = []
    gpu = FakeGPU()
    with gpu:
        weight, momentum = torch.ones(4, 4, device="cuda"), torch.ones(4, device="cuda")
        step, slots = torch.ones(()), [weight.view(4, 4)]
        state = {"w": {"master": weight, "slots": slots, "optimizer": [momentum, 3, step]}}
        executor = Pipelined.__new__(Pipelined)
        executor._stages = [SimpleNamespace(state=lambda: state)]
        executor._gang, executor._spill = SimpleNamespace(replica=0), Path()
        with patch.object(groups, "collect", lambda gang, items: sent.extend(items) or []):
            executor.state()
        [(_, of_weight)] = sent
        tensors = of_weight["master"], of_weight["slots"][0], of_weight["optimizer"][0]
        return {
            "devices": [tensor.device.type for tensor in tensors],
            "is_shared": tensors[0] is tensors[1],
            "others": of_weight["optimizer"][1:2],
        }
