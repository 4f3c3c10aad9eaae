"""How ranks exchange data: inside programs, and from host to host. Knows JAX, not torch.

In: arrays of the program being traced (`inside`), bytes of a host (`messages`). Out: what the other
ranks brought. Two transports move the data of programs: `shared_memory` between ranks of one host,
`mesh` between hosts and accelerators.

The words, which are the field's:

rank, world    one of the processes (or threads) of a job, 0 .. world_size - 1; all of them
group, member  ranks that call one collective together; a rank's position in its group
collective     a call that every rank of a group makes: all_reduce, all_gather, ...
segment        the memory that the members of one group share
slot           a member's part of it, where it writes what the others read
barrier        where a member waits until all have come as often as it has
launch         one run of a program that holds collectives
message        bytes or an array from one rank to another
tag            what matches messages and rendezvous, beside the rank
channel        the number that matches `xm.send` with `xm.recv`
rendezvous     all ranks bring bytes under a tag, and get those of all
server         the thread of a rank that answers the other ranks of its host
status         what a rank says of itself: in which call it waits, and for whom
seal           an HMAC, by which the ranks of a job know each other's values
"""
