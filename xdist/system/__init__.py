"""What every part stands on: processes, messages between them, and who this rank is.

Comes in: process numbers, sockets, the environment. Goes out: a `Process` that is never mistaken
for another, a `Frame` whose sizes are bounded, a `Rank`. Standard library only, so that the
launcher, the collectives and `import torch_xdist` may use it.
"""
