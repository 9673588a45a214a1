"""What delay and its corrections do to an optimizer on a quadratic: no training, no torch.

`linear` has the algebra of filters, what each choice of conf/ is in it, and the closed loop;
`stability` finds the edges. The equations are in docs/theory.md.
"""
