"""Processes: `spawn`, `xla-run`, and everything between them and the ranks.

    xla-run (ways_in/cli)  or  script ──socket── conductor (ways_in)
                  │                                  │
                  └───────────── head/ ──────────────┘     one thread per job: judges, acts
                                  │  backends/: control.py (gRPC), or pipe_stream.py inside ssh
                                agent (on_host/)           one per host
                                  │  socket
                               nursery (on_host/)          imports torch and jax once
                                  │  fork
                          rank 0 .. rank N-1 (on_host/worker)

`facts/` holds what all of them know. A folder imports only from `facts/`, from `pipe_stream` and
`control`, and from folders below it in this picture; `torch_xla_names/` are ways in, too. Nothing
here imports torch or jax but the worker.
"""
