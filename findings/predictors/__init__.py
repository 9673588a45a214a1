"""The study of predictions by the last update and by the raw momentum: its page from its table."""
