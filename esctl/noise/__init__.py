"""What a seed means: ε(seed, tensor name, element index), and moves, which are sums of seeds with coefficients.

`spec` is the specification and its short reference, `moves` the algebra of (seed, coefficient) pairs, `cpu` and `gpu`
the kernels that write them into weights. May import the ground alone. This file imports nothing, so that `moves` costs
nothing to import.
"""
