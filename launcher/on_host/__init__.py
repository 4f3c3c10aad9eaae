"""The processes of one host: its agent, the nursery that forks the ranks, the ranks themselves.

Comes in: one frame on the agent's stdin (where the head is), then orders over the control plane,
which to another host's head is the agent's own stdin and stdout
(`start`, `release`, `stop`, `stacks`, `bye`). Goes out: what the ranks say (`arrived`, heartbeats,
`finished`, `failed`), that they ended, and their lines; and one log file per rank.

    agent ──socket── nursery ──fork── rank (worker, with its heartbeat)
      │  └─link, log pipe─────────────┘  └─ what the rank starts
      └─ pump, log_files                coordinator (JAX's service, if the ranks need one)
"""
