"""Executors of a schedule: one process, or a rank of a true pipeline, with the same numbers."""
