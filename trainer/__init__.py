"""One trial: a pipeline-parallel training run with an exact, counted gradient delay."""
