"""Processes: `spawn`, `xla-run`, and the control plane between them.

Nothing here imports torch or jax but the worker. `nursery.py` forks the ranks, `agent.py` looks
after the ranks of one host, `controller.py` decides for the job, `spawn.py` and `cli.py` are the
two ways in.
"""
