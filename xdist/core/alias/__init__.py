"""Tensors that share memory: views, writes through them, storages.

In: view operators and results to be written. Out: rows that read a view from its parent, or write
it back by the inverse of its step; every other tensor of the same memory sees the write.
"""
