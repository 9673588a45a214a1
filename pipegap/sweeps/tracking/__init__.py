"""Logs running trials to trackers such as wandb. No tracker can break or block a trial."""
