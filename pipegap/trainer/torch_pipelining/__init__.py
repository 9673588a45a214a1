"""2BW for training loops on torch.distributed.pipelining: see docs/pipeline.md."""

from pipegap.trainer.torch_pipelining.schedule import Schedule2BW

__all__ = ["Schedule2BW"]
