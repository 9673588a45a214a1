"""Named random streams: every random number of a trial is a function of (seed, purpose)."""

import hashlib

import torch


def stream_seed(seed: int, *name: str) -> int:
    """A 63-bit seed for the stream `name` of a trial with `seed`; streams are independent."""
    digest = hashlib.sha256("/".join([str(seed), *name]).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def stream(seed: int, *name: str) -> torch.Generator:
    """A CPU generator for the stream `name`: its numbers depend on no device."""
    return torch.Generator().manual_seed(stream_seed(seed, *name))
