"""Downstream tasks: what is asked of a trained model, and what it answers."""
