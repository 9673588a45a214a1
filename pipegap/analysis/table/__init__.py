"""A store of trials as one tidy table."""
