"""A trial's folder: who may write it, what it holds, and what survives a kill."""
