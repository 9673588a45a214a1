"""How sharp the loss is where an optimizer trains, in the norm of its preconditioner."""
