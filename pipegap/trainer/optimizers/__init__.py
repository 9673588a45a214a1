"""Optimizers by kind of parameter, one file per family; from libraries where a faithful one exists.

An optimizer is a function that returns a torch optimizer. Positional arguments come from the trial,
keywords from its YAML in conf/optimizer/, whose `_target_` is the function's import path. An
optimizer remembers only the options of its groups and the state of its weights, which are plain
data and tensors.
"""
