"""What earlier runs left: compiled programs, plans that were inferred, how long compilations took.

Knows programs as JAX has them, and who they are; not how they are made.
"""
