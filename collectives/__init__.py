"""How ranks exchange data: inside programs, and from host to host. Knows JAX, not torch.

`inside` is what lowerings call; `host` and `mesh` join the ranks; `channel` sends small messages.
"""
