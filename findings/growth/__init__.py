"""The study of growth: its page from its table."""
