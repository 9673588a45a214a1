"""The code of the notebook: it publishes trials and makes tables, sentences and figures of them."""
