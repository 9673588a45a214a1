"""What a trial is asked to be: composed by Hydra, checked, planned, and named by its id."""
