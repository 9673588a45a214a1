"""A store's report: one page, and its tables and figures as files."""
