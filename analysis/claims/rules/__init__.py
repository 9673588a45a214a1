"""The rules of verdicts."""
