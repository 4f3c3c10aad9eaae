"""Operators that arrive: their arguments, their plan, their row.

In: calls of torch operators on device tensors. Out: lazy tensors, and a row in the thread's trace;
where no lowering serves a call, the CPU runs it.
"""
