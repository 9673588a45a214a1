"""What delay and its corrections do to an optimizer on a quadratic: no training, no torch.

`recursion` has the algebra of filters and closes the loop, `linear` says what each choice of conf/
is in it, `stability` finds the edges. The equations are in docs/theory.md.
"""
