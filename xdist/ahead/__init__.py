"""Programs compiled ahead of time, for accelerators that are not here.

In: a recorded step and the name of a topology. Out: what that accelerator's own compiler makes of
it. `topology` names the devices, `compiler` is the process that compiles for them, `step` takes the
program of what is pending, `verdict` is what is told of it.
"""
