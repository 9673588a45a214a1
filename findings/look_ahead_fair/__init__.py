"""The study of look-ahead as a rival: its page from its table."""
