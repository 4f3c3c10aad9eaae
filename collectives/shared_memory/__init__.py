"""The transport between ranks of one host (or threads of one process) that share memory.

In: a collective of a compiled program, as a custom call with the program's own buffers. Out: the
buffers of its results, filled. `transport` joins the ranks, `lowering` makes the calls.
"""
