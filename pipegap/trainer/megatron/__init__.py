"""2BW for training loops on Megatron Core, which only this room imports: see docs/megatron.md."""
