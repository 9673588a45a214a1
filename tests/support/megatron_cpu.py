"""Megatron Core on CPUs over gloo, where there is no GPU: imported before anything of Megatron.

What asks for a GPU in `megatron/core` 0.16.1, in runs of 1F1B with DDP and each of its optimizers:

- `device="cuda"`: schedules.py, optimizer.py, clip_grads.py, utils.py
- `current_device`: p2p_communication.py, param_and_grad_buffer.py, utils.py
- `.cuda()`: language_module.py, for tied embeddings
- `synchronize`: p2p_communication.py, for `batch_p2p_sync`
- `Tensor.type() == "torch.cuda.…"`: optimizer.py, distrib_optimizer.py, clip_grads.py
- the generator: tensor_parallel/random.py
- `te_general_gemm`, which moe_utils.py asks for and defines with Transformer Engine alone
"""

import warnings
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

TYPES = {torch.float32: "Float", torch.bfloat16: "BFloat16", torch.float16: "Half"}


class OnCPU(TorchFunctionMode):
    """Makes tensors of `device="cuda"` on the CPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if "cuda" in str(options.get("device")):
            options["device"] = "cpu"
        return function(*args, **options)


tensor_type: Any = torch.Tensor.type


def type_on_gpu(self: torch.Tensor, *args: Any) -> Any:
    is_known = not args and self.dtype in TYPES
    return f"torch.cuda.{TYPES[self.dtype]}Tensor" if is_known else tensor_type(self, *args)


def stand_in() -> None:
    """From now on, in this process."""
    cuda: Any = torch.cuda
    tensor: Any = torch.Tensor
    OnCPU().__enter__()
    tensor.type, tensor.cuda = type_on_gpu, lambda self, *_, **__: self
    cuda.current_device, cuda.synchronize = lambda: torch.device("cpu"), lambda *_: None
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()
    from megatron.core.tensor_parallel import random

    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


warnings.filterwarnings("ignore")  # of Apex and Transformer Engine, which are not there
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    stand_in()

from megatron.core.transformer.moe import moe_utils  # noqa: E402

if not hasattr(moe_utils, "te_general_gemm"):
    moe_utils.te_general_gemm = None
