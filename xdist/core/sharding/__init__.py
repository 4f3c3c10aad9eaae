"""One logical device that stands for all devices of the job: who holds which part of an array.

In: tilings, which say it in the terms of XLA's annotations. Out: JAX's shardings, and arrays that
lie so. Nothing here knows a tape or a torch tensor.
"""
