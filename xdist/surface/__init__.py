"""`python -m torch_xdist.surface`: torch_xla 2.9.0's names, and which of them are here.

In: `names.json`, every public name of torch_xla 2.9.0 with its signature. Out: name by name whether
it is there, how it differs, or that it is absent.
"""
