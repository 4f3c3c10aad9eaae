"""`python -m torch_xdist.launcher` is `xla-run`."""

from torch_xdist.launcher.ways_in.cli import main

main()
