"""What the cloud says of this machine before it takes it away: preemptions and maintenance.

In: the answers of the metadata server. Out: one message to the head, which lets all ranks save.
`cloud` says what the answers mean, `watch` asks for them on a thread of the agent.
"""
