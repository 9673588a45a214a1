"""The laboratory notebook: what the project measured, one folder per study, and its pages."""
