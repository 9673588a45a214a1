"""May I make my pipeline asynchronous? From a store of trials and a simulation of the pipeline."""
