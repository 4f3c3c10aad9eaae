"""JAX functions as operators of the device: users' own, and torch's control flow.

In: JAX functions and Python functions of tensors. Out: one row each, with gradients of every order.
"""
