"""What is measured: a scale of conf/scale on a device, and how often."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from omegaconf import OmegaConf

from trainer.base.places import CONF


@dataclass(frozen=True)
class Setting:
    """The words of a trial at `scale`, on `device`; every time is a median of `rounds`."""

    scale: str
    device: torch.device
    rounds: int
    more: tuple[str, ...] = ()
    """Words that every trial gets, after those of the scale."""

    def words(self, *words: str) -> list[str]:
        """The words of the scale, then `words`; later ones win."""
        base = list(OmegaConf.load(CONF / "scale" / f"{self.scale}.yaml").base)
        device = f"device={self.device}"
        given = {word.partition("=")[0]: word for word in (*base, device, *self.more, *words)}
        return list(given.values())
