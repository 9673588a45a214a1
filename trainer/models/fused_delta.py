"""The gated delta rule by the fused kernels of flash-linear-attention, for a GPU in bf16."""

from torch import Tensor

from trainer.base.errors import BadInput

FUSED_CHUNKS = (16, 32, 64)
"""The chunks, in tokens, that there are kernels for."""


def fused_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, chunk_size: int
) -> Tensor:
    """Returns what `trainer.models.delta.gated_delta_rule` does of these arguments, within bf16.

    The kernels take queries, keys and values in bf16 and decays in fp32. Triton times them and
    keeps the fastest, so that two processes may add in another order. Raises BadInput where
    flash-linear-attention cannot be imported; not before, as who plans a trial may lack it.
    """
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # takes seconds
    except ImportError as error:
        allowed = f"needs `pip install 'pipegap[fla]'` ({error})"
        raise BadInput("model.fused_delta_rule", True, allowed) from None
    q, k, v, rate = (x.transpose(1, 2).bfloat16() for x in (q, k, v, rate))
    decay = log_decay.transpose(1, 2).float()
    out, _ = chunk_gated_delta_rule(q, k, v, decay, rate, chunk_size=chunk_size)
    out = out.transpose(1, 2)
    assert isinstance(out, Tensor)
    return out
