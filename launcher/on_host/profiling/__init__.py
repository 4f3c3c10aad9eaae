"""A profile of a running job, as `xla-run profile` asks for it: on the host of its ranks."""
