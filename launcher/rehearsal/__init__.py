"""`xla-run compile`: a script's first steps, compiled for TPUs that are not here; nothing runs.

Comes in: a command and the names of topologies. Goes out: what each program needs on a chip, what
bounds a step, whether it fits. `topologies`, `chips`, `estimate` and `table` are pure; `script` is
the user's process, which `torch_xdist.ahead.rehearsal` makes a rank of the topology.
"""
