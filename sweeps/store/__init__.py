"""What a store holds of trials: which are started, free, finished or damaged."""
