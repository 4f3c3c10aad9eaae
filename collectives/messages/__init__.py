"""Small messages between ranks, from the host, outside any program.

In: bytes under a tag, for all ranks (`rendezvous`) or for one. Out: the bytes the others sent.
`communicator` is what other folders call.
"""
