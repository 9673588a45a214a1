"""A store of trials, a folder or in an object store: who runs what, and what has finished."""
