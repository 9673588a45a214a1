"""The gated delta rule token by token, as in equation 10 of arXiv 2412.06464."""

import torch
from torch import Tensor


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor) -> Tensor:
    """S_t = S_{t−1} (α_t (I − β_t k_t k_tᵀ)) + β_t v_t k_tᵀ and o_t = S_t q_t / √K."""
    sequences, heads, seq_len, key_size = k.shape
    identity, rows = torch.eye(key_size, dtype=k.dtype), []
    for s in range(sequences):
        for h in range(heads):
            state = torch.zeros(v.shape[-1], key_size, dtype=k.dtype)
            for t in range(seq_len):
                key, value, beta = k[s, h, t], v[s, h, t], rate[s, h, t]
                kept = log_decay[s, h, t].exp() * (identity - beta * torch.outer(key, key))
                state = state @ kept + beta * torch.outer(value, key)
                rows.append(state @ q[s, h, t] / key_size**0.5)
    return torch.stack(rows).view_as(v)
