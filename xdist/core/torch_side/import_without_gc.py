"""The core and JAX, imported while the garbage collector rests, if their releases fit.

They make half a million objects and little garbage: the collector would take a quarter of the
time. It counts what there is as old afterwards, and begins later where nobody has said when.
"""

import gc

# A step's rows are young when they go, so there is nothing to find among them. Where it looks
# after every 700 objects, as Python has it, and at all there is whenever enough had to be kept, it
# takes a tenth of a small step, and a quarter of a second now and then, for which a GPU stands
# still.
_PYTHONS_OWN = 700, 2000
_YOUNG = 10_000

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
    _first, *_others = gc.get_threshold()
    if _first in _PYTHONS_OWN:
        gc.set_threshold(_YOUNG, *_others)
    if _was_on:
        gc.enable()

__all__ = ["registration"]
