"""The documents that are made from the trials published in docs/: `python -m bench.documents`."""
