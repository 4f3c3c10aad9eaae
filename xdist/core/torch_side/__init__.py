"""Teaching torch the device: every place where torch is extended or patched, and what is put there.

In: torch as it is installed. Out: a torch to which "xla" is a device like "cuda".
"""
