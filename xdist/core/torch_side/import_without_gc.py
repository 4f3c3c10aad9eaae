"""The core and JAX, imported while the garbage collector rests, if their releases fit.

They make half a million objects and little garbage: the collector would take a quarter of the
time. It is as it was afterwards, and counts what there is as old.
"""

import gc

_was_on = gc.isenabled()
gc.disable()
try:
    from torch_xdist.releases import probes

    probes.require()
    from torch_xdist.core.torch_side import registration
finally:
    if not gc.get_freeze_count():
        # Into the oldest generation, without a look at each of them.
        gc.freeze()
        gc.unfreeze()
    if _was_on:
        gc.enable()

__all__ = ["registration"]
