"""`python -m torch_xdist.launcher` is `xla-run`."""

from torch_xdist.launcher.cli import main

main()
