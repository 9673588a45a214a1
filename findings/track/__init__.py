"""The table of the delay track."""
