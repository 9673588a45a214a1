"""The compiled update: a stage's forward, backward and update as graphs of torch's compiler."""
