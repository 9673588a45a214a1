"""2BW for training loops on Megatron Core: see docs/megatron.md. Only this room imports it."""

from pipegap.trainer.megatron.optimizers import DelayedSteps
from pipegap.trainer.megatron.schedule import Megatron2BW
from pipegap.trainer.megatron.training import install

__all__ = ["DelayedSteps", "Megatron2BW", "install"]
