"""One stage of the model under delay: versions of its weights, its backward and its update."""
