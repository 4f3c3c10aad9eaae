"""The head of a job: one thread that sees every rank, judges, and acts.

Comes in: a `Job`, and what the agents tell over the control plane. Goes out: orders to the agents,
events for whoever shows them (`start`, `log`, `beats`, `note`, `failure`, `end`), and an `Ending`.
`runner` makes attempts of a job, `head` is one attempt, `start` its beginning; `verdict`,
`standing` and `restarts` decide, without a clock and without effects. `fellows` are the heads of
other hosts, where a job has no launcher.
"""
