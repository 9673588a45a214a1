"""What delay and its corrections do to an optimizer on a quadratic: no training, no torch.

`filters` is the algebra, `optimizers` and `corrections` say what each choice of conf/ is in it,
`recursion` closes the loop, `stability` finds its edges, `standing` says how near a run trains.
The equations are in docs/theory.md.
"""
