"""How people start jobs and look after them: `xla-run`, `spawn`, `launch`.

Comes in: a command line, or a function with its arguments. Goes out: a `Job` for the head, which
runs in the process of `xla-run`, or in a conductor beside the process that called `spawn`; the
ranks' lines on the screen, their results, an exit code.
"""
