"""Compiled programs in a folder between runs: whose it is, its entries, and who compiles first.

Knows bytes under keys; what is in them only JAX knows.
"""
